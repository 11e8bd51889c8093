//! Programs beside the first process: streams apart, input that ends, terminals, exit codes; archives in and out.

use std::time::Duration;

use moltis_backend_container::engine::{EngineError, ExecSpec, Execution, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::support::{engines, exec};

#[tokio::test]
async fn streams_are_apart_and_binary_safe() {
    for tested in engines("streams_are_apart_and_binary_safe").await {
        let made = tested.run(&tested.spec()).await;
        let said = tested.shell(&made.id, "printf 'a\\001\\n'; printf b >&2; exit 7").await;
        assert_eq!(said, ("a\u{1}\n".to_owned(), "b".to_owned(), 7), "{}", tested.name);
        let spec = ExecSpec {
            user: Some((65534, 65534)),
            directory: Some("/tmp".to_owned()),
            env: vec![("X".to_owned(), "y z".to_owned())],
            ..exec(&["/bin/sh", "-c", "id -u; pwd; echo $X"])
        };
        let run = tested.engine.exec(&made.id, &spec).await.unwrap();
        assert_eq!(tested.finish(run).await.0, "65534\n/tmp\ny z\n", "{}", tested.name);
    }
}

#[tokio::test]
async fn input_ends_and_output_goes_on() {
    for tested in engines("input_ends_and_output_goes_on").await {
        let made = tested.run(&tested.spec()).await;
        for shut_down in [true, false] {
            let script = "n=$(wc -c); sleep 0.3; echo got $n";
            let run = tested.engine.exec(&made.id, &exec(&["/bin/sh", "-c", script])).await.unwrap();
            let Execution { id, mut stdin, mut output } = run;
            let bytes = vec![7_u8; 3 << 20];
            stdin.write_all(&bytes).await.unwrap();
            stdin.flush().await.unwrap();
            if shut_down {
                stdin.shutdown().await.unwrap();
            } else {
                drop(stdin);
            }
            let mut out = Vec::new();
            let all = async {
                while let Some((stream, piece)) = output.next().await.unwrap() {
                    assert_eq!(stream, Stream::Stdout);
                    out.extend(piece);
                }
            };
            tokio::time::timeout(Duration::from_secs(20), all).await.unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), "got 3145728\n", "{}", tested.name);
            assert_eq!(tested.code(&id).await, 0, "{}", tested.name);
        }
    }
}

#[tokio::test]
async fn much_output_comes_whole() {
    for tested in engines("much_output_comes_whole").await {
        let made = tested.run(&tested.spec()).await;
        let script = "head -c 20000000 /dev/zero; echo end >&2";
        let run = tested.engine.exec(&made.id, &exec(&["/bin/sh", "-c", script])).await.unwrap();
        let Execution { mut output, .. } = run;
        let (mut out, mut err) = (0, Vec::new());
        while let Some((stream, piece)) = output.next().await.unwrap() {
            assert!(piece.len() <= 256 << 10);
            match stream {
                Stream::Stdout => out += piece.len(),
                Stream::Stderr => err.extend(piece),
            }
        }
        assert_eq!((out, &err[..]), (20_000_000, &b"end\n"[..]), "{}", tested.name);
    }
}

#[tokio::test]
async fn terminals_have_a_size() {
    for tested in engines("terminals_have_a_size").await {
        let made = tested.run(&tested.spec()).await;
        let script = "sleep 0.5; stty size; read x; stty size; echo got $x";
        let spec = ExecSpec { terminal: Some((33, 77)), ..exec(&["/bin/sh", "-c", script]) };
        let Execution { id, mut stdin, mut output } = tested.engine.exec(&made.id, &spec).await.unwrap();
        let mut text = String::new();
        while !text.contains('\n') {
            let (_, piece) = output.next().await.unwrap().unwrap();
            text.push_str(&String::from_utf8(piece).unwrap());
        }
        assert_eq!(text, "33 77\r\n", "{}", tested.name);
        tested.engine.exec_resize(&id, 20, 90).await.unwrap();
        // The program hands it on when it gets to it; a user's Podman is asked by its program in any case.
        let by_program = tested.name == "podman-cli" || !moltis_testkit::need::root();
        tokio::time::sleep(Duration::from_millis(if by_program { 1_000 } else { 0 })).await;
        assert_eq!(tested.engine.exec_result(&id).await.unwrap(), None, "{}", tested.name);
        stdin.write_all(b"hi\n").await.unwrap();
        stdin.flush().await.unwrap();
        while let Some((_, piece)) = output.next().await.unwrap() {
            text.push_str(&String::from_utf8(piece).unwrap());
        }
        assert!(text.ends_with("20 90\r\ngot hi\r\n"), "{}: {text:?}", tested.name);
        assert_eq!(tested.code(&id).await, 0, "{}", tested.name);
    }
}

#[tokio::test]
async fn programs_that_cannot_run_are_told() {
    for tested in engines("programs_that_cannot_run_are_told").await {
        let name = tested.name;
        let made = tested.run(&tested.spec()).await;
        match tested.engine.exec(&made.id, &exec(&["/nonexistent"])).await {
            // Docker finds out after it has handed over the stream.
            Ok(run) => {
                let (_, _, code) = tested.finish(run).await;
                assert!(matches!(code, 126 | 127), "{name}: {code}");
            }
            Err(error) => assert!(matches!(error, EngineError::Refused { .. }), "{name}: {error:?}"),
        }
        tested.engine.remove(&made.id).await.unwrap();
        let error = tested.engine.exec(&made.id, &exec(&["/bin/true"])).await.err();
        assert_eq!(error, Some(EngineError::NoSuchContainer { id: made.id.clone() }), "{name}");
    }
}

#[tokio::test]
async fn a_container_that_ends_ends_its_programs() {
    for tested in engines("a_container_that_ends_ends_its_programs").await {
        let made = tested.run(&tested.spec()).await;
        let run = tested.engine.exec(&made.id, &exec(&["/bin/sh", "-c", "echo on; sleep 50"])).await.unwrap();
        let Execution { mut output, stdin: _stdin, .. } = run;
        assert_eq!(output.next().await.unwrap(), Some((Stream::Stdout, b"on\n".to_vec())), "{}", tested.name);
        let ending = async {
            loop {
                match output.next().await {
                    // What Podman's program has to say of it comes with what the container's wrote.
                    Ok(Some((Stream::Stderr, _))) => {}
                    end => return end,
                }
            }
        };
        let (removed, end) = tokio::join!(
            tested.engine.remove(&made.id),
            tokio::time::timeout(Duration::from_secs(20), ending)
        );
        removed.unwrap();
        assert!(matches!(end.unwrap(), Ok(None) | Err(EngineError::Unreachable { .. })), "{}", tested.name);
    }
}

#[tokio::test]
async fn archives_go_in_and_out() {
    for tested in engines("archives_go_in_and_out").await {
        let name = tested.name;
        let made = tested.run(&tested.spec()).await;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("f"), "contents").unwrap();
        let tar = std::process::Command::new("tar")
            .args(["-c", "--owner=1000", "--group=1000", "-C"])
            .arg(folder.path())
            .arg("f")
            .output()
            .unwrap();
        tested.engine.put_archive(&made.id, "/var", tar.stdout.clone()).await.unwrap();
        assert_eq!(
            tested.shell(&made.id, "cat /var/f; stat -c %u /var/f").await.0,
            "contents1000\n",
            "{name}"
        );
        let mut out = Vec::new();
        tested.engine.get_archive(&made.id, "/var/f").await.unwrap().read_to_end(&mut out).await.unwrap();
        std::fs::write(folder.path().join("out.tar"), out).unwrap();
        let listed =
            std::process::Command::new("tar").arg("-tf").arg(folder.path().join("out.tar")).output().unwrap();
        assert_eq!(String::from_utf8(listed.stdout).unwrap(), "f\n", "{name}");
        let missing = |path: &str| EngineError::NoSuchPath { path: path.to_owned() };
        let error = tested.engine.get_archive(&made.id, "/nope").await.err();
        assert_eq!(error, Some(missing("/nope")), "{name}");
        let error = tested.engine.put_archive(&made.id, "/nope", tar.stdout).await.err();
        assert_eq!(error, Some(missing("/nope")), "{name}");
        tested.engine.remove(&made.id).await.unwrap();
        let error = tested.engine.get_archive(&made.id, "/var").await.err();
        assert_eq!(error, Some(EngineError::NoSuchContainer { id: made.id.clone() }), "{name}");
    }
}
