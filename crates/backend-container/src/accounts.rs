//! The user database of a sandbox: the image's own, with the sandbox's user in it.

/// Longest database of an image that is looked at, in bytes.
pub const MAX_BYTES: usize = 256 * 1024;

/// `/etc/passwd` and `/etc/group` for a sandbox whose user has these ids; `passwd` and `group` are the image's, empty
/// where it has none. Entries that would give the sandbox's name or ids to somebody else go.
pub fn generate(passwd: &str, group: &str, (uid, gid): (u32, u32)) -> (String, String) {
    let shell = passwd
        .lines()
        .filter_map(|line| line.strip_prefix("root:")?.rsplit(':').next())
        .find(|shell| shell.starts_with('/') && !shell.ends_with("nologin") && !shell.ends_with("false"))
        .unwrap_or("/bin/sh");
    let mut users = String::new();
    if uid != 0 && !passwd.lines().any(|line| line.starts_with("root:")) {
        users.push_str("root:x:0:0:root:/root:/bin/sh\n");
    }
    for line in kept(passwd, 7, uid) {
        users.push_str(line);
        users.push('\n');
    }
    users.push_str(&format!("sandbox:x:{uid}:{gid}:sandbox:/home/sandbox:{shell}\n"));
    let mut groups = String::new();
    if gid != 0 && !group.lines().any(|line| line.starts_with("root:")) {
        groups.push_str("root:x:0:\n");
    }
    for line in kept(group, 4, gid) {
        groups.push_str(line);
        groups.push('\n');
    }
    groups.push_str(&format!("sandbox:x:{gid}:\n"));
    (users, groups)
}

/// Lines that are entries of this many fields, and neither of this id nor of our name.
fn kept(text: &str, fields: usize, id: u32) -> impl Iterator<Item = &str> {
    let text = if text.len() > MAX_BYTES { "" } else { text };
    text.lines().filter(move |line| {
        let parts: Vec<&str> = line.split(':').collect();
        let plain = line.chars().all(|c| !c.is_control());
        plain && parts.len() == fields && parts[0] != "sandbox" && parts[2].parse() != Ok(id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_images_users_stay_and_the_sandboxs_is_one_of_them() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nnode:x:1000:1000::/home/node:/bin/sh\n\
                      sandbox:x:7:7::/x:/bin/sh\nwww:x:33:33::/var/www:/usr/sbin/nologin\nrubbish\n\u{1b}:x:9:9::/:/\n";
        let (users, groups) = generate(passwd, "root:x:0:\nnode:x:1000:\nwww:x:33:a,b\n", (1000, 1000));
        assert_eq!(
            users,
            "root:x:0:0:root:/root:/bin/bash\nwww:x:33:33::/var/www:/usr/sbin/nologin\n\
             sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/bash\n"
        );
        assert_eq!(groups, "root:x:0:\nwww:x:33:a,b\nsandbox:x:1000:\n");
    }

    #[test]
    fn an_image_without_users_gets_root_and_the_sandboxs() {
        let (users, groups) = generate("", "", (1000, 100));
        assert_eq!(
            users,
            "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:100:sandbox:/home/sandbox:/bin/sh\n"
        );
        assert_eq!(groups, "root:x:0:\nsandbox:x:100:\n");
        let (users, _) = generate("", "", (0, 0));
        assert_eq!(users, "sandbox:x:0:0:sandbox:/home/sandbox:/bin/sh\n");
        assert!(generate(&"a:x:1:1::/:/\n".repeat(100_000), "", (5, 5)).0.len() < 200);
    }
}
