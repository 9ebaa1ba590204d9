//! How a file of the Hugging Face Hub is named on the command line and in the models folder.

use std::fmt;

/// One GGUF file of a Hub repository: `org/repo/path/file.gguf`, optionally `@revision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    pub owner: String,
    pub repo: String,
    /// Path inside the repository.
    pub path: String,
    /// Branch, tag or commit; the repository's `main` when absent.
    pub revision: Option<String>,
}

impl HubFile {
    /// Reads `org/repo/path/file.gguf[@revision]`; `None` when `text` is something else.
    pub fn parse(text: &str) -> Option<Self> {
        // A file name may hold an `@`, so the revision is what follows the extension.
        let (file, revision) = match text.find(".gguf@") {
            Some(at) => {
                let (file, revision) = text.split_at(at + ".gguf".len());
                (file, Some(revision.strip_prefix('@')?))
            }
            None => (text.strip_suffix(".gguf").map(|_| text)?, None),
        };
        let mut segments = file.splitn(3, '/');
        let (owner, repo, path) = (segments.next()?, segments.next()?, segments.next()?);
        let is_file = [owner, repo].into_iter().all(is_repo_part)
            && path.split('/').all(is_path_segment)
            && revision.is_none_or(|r| r.split('/').all(is_path_segment));
        is_file.then(|| Self {
            owner: owner.to_owned(),
            repo: repo.to_owned(),
            path: path.to_owned(),
            revision: revision.map(str::to_owned),
        })
    }

    /// The file's name in the models folder.
    ///
    /// It keeps owner, repository and revision, since many repositories hold a `model.gguf`.
    /// The separator is the Hub's own cache's `--`, which repository names may not contain.
    pub fn local_name(&self) -> String {
        let stem = self.path.strip_suffix(".gguf").unwrap_or(&self.path);
        let revision = match &self.revision {
            Some(revision) => format!("@{}", revision.replace('/', "--")),
            None => String::new(),
        };
        format!(
            "{}--{}--{}{revision}.gguf",
            self.owner,
            self.repo,
            stem.replace('/', "--")
        )
    }
}

impl fmt::Display for HubFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.owner, self.repo, self.path)?;
        match &self.revision {
            Some(revision) => write!(f, "@{revision}"),
            None => Ok(()),
        }
    }
}

fn is_repo_part(text: &str) -> bool {
    is_path_segment(text)
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// Rules out what would climb out of a folder or confuse a URL.
fn is_path_segment(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('.') && !text.chars().any(|c| c.is_control() || c == '\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_paths_and_revisions() {
        for (text, path, revision, local) in [
            ("a/b/c.gguf", "c.gguf", None, "a--b--c.gguf"),
            ("a/b/d/e/c.gguf", "d/e/c.gguf", None, "a--b--d--e--c.gguf"),
            (
                "a/b/c.gguf@v1.0",
                "c.gguf",
                Some("v1.0"),
                "a--b--c@v1.0.gguf",
            ),
            (
                "a/b/c@x.gguf@refs/pr/1",
                "c@x.gguf",
                Some("refs/pr/1"),
                "a--b--c@x@refs--pr--1.gguf",
            ),
        ] {
            let file = HubFile::parse(text).unwrap();
            assert_eq!((file.owner.as_str(), file.repo.as_str()), ("a", "b"));
            assert_eq!(file.path, path);
            assert_eq!(file.revision.as_deref(), revision);
            assert_eq!(file.local_name(), local);
            assert_eq!(file.to_string(), text);
        }
    }

    #[test]
    fn refuses_what_is_no_hub_file() {
        for text in [
            "",
            "name",
            "b/c.gguf",
            "/b/c.gguf",
            "./b/c.gguf",
            "../b/c.gguf",
            "a/b/../c.gguf",
            "a/b/c.bin",
            "a/b/c.gguf@",
            "a/b/c.gguf@../x",
            "a b/b/c.gguf",
            "a/b//c.gguf",
        ] {
            assert_eq!(HubFile::parse(text), None, "{text}");
        }
    }
}
