//! Through which listener a request came.

use actix_web::HttpRequest;

/// See the module's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Door {
    /// `server.listen`: everybody's.
    Public,
    /// `server.admin_listen`: the operator's. A generation goes past admission and its cap, and stands in no account
    /// but its own; there is one at a time.
    Admin,
}

impl Door {
    /// The door of a request: a server says it with its application's data.
    pub fn of(request: &HttpRequest) -> Self {
        request.app_data().copied().unwrap_or(Self::Public)
    }
}
