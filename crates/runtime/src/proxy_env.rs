//! What programs in a sandbox are told of the proxy on its loopback: the variables that they go by.

use moltis_host::node_proxy;

/// Hosts that are the sandbox itself, and are not asked of the proxy.
const OWN: &str = "localhost,127.0.0.1,::1";

/// The variables for a proxy on this port of the sandbox's loopback, each of which a variable of the same name in the
/// session or the request replaces. Only for sandboxes that hold [`node_proxy::PATH`], which is every one with an agent.
pub fn proxy_variables(port: u16) -> Vec<(String, String)> {
    let proxy = format!("http://127.0.0.1:{port}");
    let mut all = Vec::with_capacity(13);
    // Some programs read only the one case, some only the other; curl reads no `HTTP_PROXY`, since in CGI scripts that is
    // a header of the request. Nothing in a sandbox answers for anybody else.
    for (name, value) in
        [("http_proxy", &*proxy), ("https_proxy", &proxy), ("all_proxy", &proxy), ("no_proxy", OWN)]
    {
        all.push((name.to_owned(), value.to_owned()));
        all.push((name.to_uppercase(), value.to_owned()));
    }
    let mut set = |name: &str, value: String| all.push((name.to_owned(), value));
    // In no variable that programs know, since many take a SOCKS proxy for a reason to stop.
    set("MOLTIS_SOCKS_PROXY", format!("socks5h://127.0.0.1:{port}"));
    set("NODE_USE_ENV_PROXY", "1".to_owned());
    set("NODE_OPTIONS", format!("--require={}", node_proxy::PATH));
    // Every JVM names it on standard error when it starts. There is no quiet way that all of them take.
    set(
        "JAVA_TOOL_OPTIONS",
        format!(
            "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort={port} -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={port}"
        ),
    );
    set("PERL_LWP_ENV_PROXY", "1".to_owned());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cases_name_the_proxy_and_no_address_of_the_sandbox() {
        let java = "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=3128 -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=3128";
        let expected = [
            ("http_proxy", "http://127.0.0.1:3128"),
            ("HTTP_PROXY", "http://127.0.0.1:3128"),
            ("https_proxy", "http://127.0.0.1:3128"),
            ("HTTPS_PROXY", "http://127.0.0.1:3128"),
            ("all_proxy", "http://127.0.0.1:3128"),
            ("ALL_PROXY", "http://127.0.0.1:3128"),
            ("no_proxy", "localhost,127.0.0.1,::1"),
            ("NO_PROXY", "localhost,127.0.0.1,::1"),
            ("MOLTIS_SOCKS_PROXY", "socks5h://127.0.0.1:3128"),
            ("NODE_USE_ENV_PROXY", "1"),
            ("NODE_OPTIONS", "--require=/.moltis/node-proxy.cjs"),
            ("JAVA_TOOL_OPTIONS", java),
            ("PERL_LWP_ENV_PROXY", "1"),
        ];
        assert_eq!(proxy_variables(3128), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
