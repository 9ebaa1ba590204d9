//! Which function belongs to which component: the one table behind the shares.

use super::stacks::{REGION, WAITS};

/// A part of the daemon, and the functions by which it is known.
pub struct Component {
    pub name: &'static str,
    pub what: &'static str,
    /// In the picture.
    pub color: &'static Color,
    /// Parts of names; with `=` in front the whole name.
    names: &'static [&'static str],
}

pub struct Color {
    pub name: &'static str,
    pub rgb: (u8, u8, u8),
}

const fn color(name: &'static str, rgb: (u8, u8, u8)) -> Color {
    Color { name, rgb }
}

const RED: &Color = &color("red", (232, 96, 84));
const ORANGE: &Color = &color("orange", (244, 168, 84));
const YELLOW: &Color = &color("yellow", (240, 220, 110));
const GREEN: &Color = &color("green", (120, 196, 116));
const BLUE: &Color = &color("blue", (120, 170, 230));
const VIOLET: &Color = &color("violet", (190, 150, 226));
const PINK: &Color = &color("pink", (240, 160, 200));
const GREY: &Color = &color("grey", (190, 190, 190));
pub const WHITE: &Color = &color("white", (236, 236, 236));

pub const COMPUTE: &str = "decode: compute";
pub const SPIN: &str = "decode: barrier and spin";
/// Both of them.
pub const DECODE: &str = "decode";
/// What no rule matches.
pub const OTHER: &str = "other";

/// A function belongs to the first component that has a fitting name.
pub const COMPONENTS: [Component; 11] = [
    Component {
        name: SPIN,
        color: RED,
        what: "libgomp: threads that wait for each other inside a step, or for the next one",
        names: &[WAITS, "ggml_barrier"],
    },
    Component {
        name: "sampling",
        color: VIOLET,
        what: "one token of each row's logits",
        names: &["cadenced::model::sampling"],
    },
    Component {
        name: "tokenizer, template",
        color: PINK,
        what: "chat template, tokenizer, tokens back to text",
        names: &[
            "cadenced::model::chat_template",
            "cadenced::model::vocab",
            "cadenced::logic::output",
            "encode_chat",
            "minijinja",
            "llama_vocab",
            "llm_tokenizer",
            "llm_bigram",
            "llm_symbol",
            "tokenize",
            "unicode_cpt",
            "unicode_regex",
        ],
    },
    Component {
        name: "kv",
        color: GREEN,
        what: "KvManager: the pool's accounts (llama.cpp's own cache is decode)",
        names: &["cadenced::actors::kv_manager", "cadenced::logic::kv"],
    },
    Component {
        name: "prefix",
        color: GREEN,
        what: "PrefixCache",
        names: &["cadenced::actors::prefix_cache", "cadenced::logic::prefix"],
    },
    Component {
        name: "admission",
        color: GREEN,
        what: "Admission and the wait queue",
        names: &[
            "cadenced::actors::admission",
            "cadenced::actors::wait_queue",
            "cadenced::logic::admission",
            "cadenced::logic::capacity",
            "cadenced::logic::wait_queue",
        ],
    },
    Component {
        name: "scheduler",
        color: GREEN,
        what: "Scheduler, and handing its tokens to their replies",
        names: &[
            "cadenced::actors::scheduler",
            "cadenced::logic::scheduler",
            "cadenced::job",
            "cadenced::reply::ReplySender",
        ],
    },
    Component {
        name: "http",
        color: BLUE,
        what: "actix-web, JSON, SSE, sockets",
        names: &[
            "cadenced::http",
            "cadenced::reply",
            "cadenced::lifecycle",
            "actix_http",
            "actix_web",
            "actix_server",
            "actix_service",
            "actix_router",
            "actix_codec",
            "tokio::net",
            "httparse",
            "tcp_",
            "sock_",
            "__sys_sendto",
            "__sys_recvfrom",
            "=__send",
            "=__recv",
            "=__libc_send",
            "=__libc_recv",
        ],
    },
    Component {
        name: "runner",
        color: YELLOW,
        what: "ModelRunner: batches in, rows out, around llama.cpp",
        names: &[
            "cadenced::actors::model_runner",
            "cadenced::model::step",
            "cadenced::model::llama",
            "llama_cpp_2::",
        ],
    },
    Component {
        name: COMPUTE,
        color: ORANGE,
        what: "llama.cpp and ggml on all threads",
        names: &[
            "ggml",
            "llama",
            "llm_",
            "gemm",
            "gemv",
            "tinyBLAS",
            "quantize_row",
            "vec_dot",
            REGION,
        ],
    },
    Component {
        name: "runtime",
        color: GREY,
        what: "actix' mailboxes, tokio's tasks and its event loop, where nothing above is further in",
        names: &[
            "actix::",
            "actix_rt::",
            "tokio::",
            "mio::",
            "epoll_",
            "eventfd_",
        ],
    },
];

/// The component of a function, as an index.
pub fn of(function: &str) -> Option<usize> {
    let function = function.strip_suffix("_[k]").unwrap_or(function);
    COMPONENTS.iter().position(|c| {
        c.names.iter().any(|name| match name.strip_prefix('=') {
            Some(whole) => function == whole,
            None => function.contains(name),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(function: &str) -> &'static str {
        of(function).map_or(OTHER, |i| COMPONENTS[i].name)
    }

    #[test]
    fn functions_belong_where_they_should() {
        for (function, component) in [
            ("[libgomp waits]", SPIN),
            ("ggml_barrier", SPIN),
            ("[libgomp region]", COMPUTE),
            ("ggml_graph_compute_thread.isra.0", COMPUTE),
            ("gemm_q4_b32_8x8_q8_0_lut_avx<block_iq4_nlx8>", COMPUTE),
            ("llama_kv_cache::find_slot", COMPUTE),
            ("llama_vocab::impl::tokenize", "tokenizer, template"),
            (
                "<cadenced::model::llama::LoadedModel as cadenced::model::PromptEncoder>::encode_chat",
                "tokenizer, template",
            ),
            (
                "<cadenced::model::llama::LlamaBackend as cadenced::model::ModelBackend>::decode",
                "runner",
            ),
            ("cadenced::model::step::run_part", "runner"),
            ("cadenced::model::sampling::nucleus", "sampling"),
            (
                "<cadenced::actors::kv_manager::KvManager as actix::handler::Handler<cadenced::messages::Release>>::handle",
                "kv",
            ),
            ("cadenced::logic::prefix::NoPrefixCache", "prefix"),
            (
                "cadenced::logic::wait_queue::WaitQueue<P>::put_back",
                "admission",
            ),
            ("cadenced::job::Job::deliver", "scheduler"),
            ("cadenced::reply::ReplySender::send", "scheduler"),
            ("cadenced::http::reply::Reply::poll_next", "http"),
            (
                "<actix_http::h1::dispatcher::Dispatcher<T> as core::future::future::Future>::poll",
                "http",
            ),
            ("tcp_sendmsg_locked_[k]", "http"),
            ("__send", "http"),
            ("__send_ipi_mask_[k]", OTHER),
            ("actix::mailbox::Mailbox<A>::poll", "runtime"),
            ("tokio::runtime::task::core::Core<T,S>::poll", "runtime"),
            ("start_thread", OTHER),
            ("__schedule_[k]", OTHER),
        ] {
            assert_eq!(named(function), component, "{function}");
        }
    }
}
