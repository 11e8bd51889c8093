//! `moltis config`, and what a wrong configuration does to other commands.

use crate::support::Place;

#[test]
fn a_wrong_configuration_stops_every_command_and_says_where() {
    let place = Place::new();
    let file = place.config().join("moltis.toml");
    std::fs::write(&file, "[tools.exec.sandbox]\nbakcend = \"docker\"\npool = \"many\"\n").unwrap();
    let ran = place.run(["exec", "true"]);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(125), ""));
    for part in [
        "moltis.toml:2:1",
        "bakcend",
        "did you mean `backend`?",
        "moltis.toml:3:",
        "`tools.exec.sandbox.pool`",
    ] {
        assert!(ran.stderr.contains(part), "wanted {part}: {ran:?}");
    }
    assert_eq!(place.run(["config", "check"]).status, Some(1));
    let json = place.run(["config", "check", "--json"]);
    assert_eq!(json.json()["errors"].as_array().unwrap().len(), 2);
    assert!(!place.data().exists());
}

#[test]
fn init_writes_once_and_what_it_writes_is_right() {
    let place = Place::new();
    let file = place.config().join("moltis.toml");
    place.run(["config", "init"]).is(0, &format!("{}\n", file.display()), "");
    let ran = place.run(["config", "check"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    std::fs::write(&file, "# mine\n").unwrap();
    assert_eq!(place.run(["config", "init"]).status, Some(1));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "# mine\n");
}

#[test]
fn show_names_origins_and_no_secret() {
    let place = Place::new();
    let secret = "ver_0123456789secret";
    let ran = place.moltis(["config", "show"]).env("VERCEL_TOKEN", secret).output().unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    assert!(text.contains("vercel_token = set  (VERCEL_TOKEN"), "{text}");
    assert!(!text.contains(secret));
}

#[test]
fn a_demand_in_the_file_is_kept_or_refused_like_a_flag() {
    let place = Place::new();
    std::fs::write(place.config().join("moltis.toml"), "[tools.exec.sandbox]\nnetwork = \"trusted\"\n")
        .unwrap();
    let ran = place.exec(["true"]);
    assert_eq!(ran.status, Some(125), "{ran:?}");
    assert!(
        ran.stderr.starts_with("error[demand-not-kept]: namespaces cannot keep `network` = trusted"),
        "{ran:?}"
    );
}
