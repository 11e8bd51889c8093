//! What is said of a failover: with each answer, and where a session cannot follow.

use moltis_sandbox::{BackendName, Diagnosis, Error, SessionKey};

use super::FailedOver;

/// What every answer says that comes from a stand-in.
pub(super) fn note(without: &[FailedOver], on: BackendName, isolates: bool) -> String {
    let failed: Vec<_> =
        without.iter().map(|failed| format!("{} failed ({})", failed.from, failed.why.message)).collect();
    let failed = failed.join(", ");
    if isolates {
        return format!("{failed}: this runs on {on} instead, until Moltis is restarted");
    }
    format!(
        "{failed}: this runs on {on} instead, with NO ISOLATION: on this machine, as this user, with its files and its \
         network, until Moltis is restarted; `failover = \"isolated\"` would refuse it"
    )
}

/// A session that named the backend which has failed.
pub(super) fn named_by_session(key: Option<&SessionKey>, failed: &FailedOver) -> Error {
    let from = failed.from;
    let elsewhere = key.map_or("leave off the flag".to_owned(), |key| {
        format!(
            "let the session go elsewhere: moltis session set {} --unset backend",
            crate::sessions::quoted(key.as_str())
        )
    });
    let mend = failed.why.fix.as_deref().map_or(String::new(), |fix| format!(" ({fix})"));
    Error::Unavailable(
        Diagnosis::new("backend-failed", format!("{from} has failed, and it was asked for by name"))
            .cause(&failed.why)
            .fix(format!("mend it{mend} and restart Moltis, or {elsewhere}")),
    )
}

/// Why a session cannot follow: what failed, and what the stand-in does not keep.
pub(super) fn cannot_follow(failed: &FailedOver, error: Error) -> Error {
    let tell = |mut diagnosis: Diagnosis| {
        let from = failed.from;
        diagnosis.message = format!("{from} has failed, and {}", diagnosis.message);
        let why = format!("{from}: {}", failed.why);
        diagnosis.cause = Some(match diagnosis.cause.take() {
            Some(cause) => format!("{why}; {cause}"),
            None => why,
        });
        let restart = format!("mend {from} and restart Moltis");
        diagnosis.fix = Some(match diagnosis.fix.take() {
            Some(fix) => format!("{restart}, or {fix}"),
            None => restart,
        });
        diagnosis
    };
    match error {
        Error::Refused(diagnosis) => Error::Refused(tell(diagnosis)),
        Error::Unavailable(diagnosis) if !diagnosis.is_engine_failure() => {
            Error::Unavailable(tell(diagnosis))
        }
        other => other,
    }
}
