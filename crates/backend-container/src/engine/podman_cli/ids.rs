//! Whether Podman without root can give a container ids of its own. Where it cannot it says that it works all the same,
//! and fails with the first container.

use serde::Deserialize;

use super::super::EngineError;

/// A container's user is 1000 inside, and what is below has to be somebody, too.
const NEEDED: u64 = 1001;

/// Ids that it maps, as `podman info` tells them. Versions that tell nothing leave both empty.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Mapped {
    uidmap: Vec<Range>,
    gidmap: Vec<Range>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Range {
    size: u64,
}

impl Mapped {
    /// # Errors
    /// [`EngineError::NoIds`] if they are too few for a container.
    pub(super) fn enough(&self) -> Result<(), EngineError> {
        let few = |ranges: &[Range]| {
            let sum = ranges.iter().fold(0_u64, |sum, range| sum.saturating_add(range.size));
            !ranges.is_empty() && sum < NEEDED
        };
        if !few(&self.uidmap) && !few(&self.gidmap) {
            return Ok(());
        }
        Err(EngineError::NoIds {
            cause: "this user has too few ids to give away (/etc/subuid, /etc/subgid)".to_owned(),
            fix: "sudo usermod --add-subuids 200000-265535 --add-subgids 200000-265535 \"$USER\", then: podman \
                  system migrate"
                .to_owned(),
        })
    }
}

/// Whether this process, by the text of its `/proc/self/status`, can start programs that map ids. Asked before Podman is
/// started, which would leave a process behind that holds its namespaces.
///
/// # Errors
/// [`EngineError::NoIds`] if it cannot.
pub(super) fn allowed(status: &str) -> Result<(), EngineError> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let root = field("Uid:").is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0"));
    if root || field("NoNewPrivs:") != Some("1") {
        return Ok(());
    }
    Err(EngineError::NoIds {
        cause: "Moltis runs without the right to gain privileges (no_new_privs), which newuidmap needs".to_owned(),
        fix: "under systemd install deploy/moltis-podman.conf (docs/deploy.md); elsewhere start Moltis without \
              no_new_privs"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(text: &str) -> Mapped {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn one_id_is_none_to_give_away() {
        let one = mapped(
            r#"{"uidmap": [{"container_id": 0, "host_id": 999, "size": 1}], "gidmap": [{"size": 1}]}"#,
        );
        assert!(matches!(one.enough(), Err(EngineError::NoIds { .. })));
        let ranges = r#"[{"size": 1}, {"size": 65536}]"#;
        assert_eq!(mapped(&format!(r#"{{"uidmap": {ranges}, "gidmap": {ranges}}}"#)).enough(), Ok(()));
        assert!(mapped(&format!(r#"{{"uidmap": {ranges}, "gidmap": [{{"size": 1}}]}}"#)).enough().is_err());
        assert_eq!(mapped("{}").enough(), Ok(()));
    }

    #[test]
    fn without_new_privileges_nobody_but_root_maps_ids() {
        let status = |uid: u32, none: u32| {
            format!("Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNoNewPrivs:\t{none}\n")
        };
        assert!(matches!(allowed(&status(999, 1)), Err(EngineError::NoIds { .. })));
        assert_eq!([allowed(&status(999, 0)), allowed(&status(0, 1)), allowed("")], [Ok(()), Ok(()), Ok(())]);
    }
}
