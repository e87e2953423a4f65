use super::*;
use crate::clusters::{
    kubeconfig::{KubeconfigError, RuntimeAccess},
    policy::AddressPolicy,
};

const SERVER: (&str, &str) = ("server", "https://api.runtime.example:6443");
const TOKEN: (&str, &str) = ("token", "hush-hush");

fn parse(yaml: &str) -> Result<RuntimeAccess, KubeconfigError> {
    RuntimeAccess::parse(yaml, &AddressPolicy::new(["kcp.example", "10.0.0.0/8"]).unwrap())
}

#[test]
fn accepts_inline_kubeconfig_data() {
    let ca = Ca::new();
    let leaf = ca.issue(&["admin"]);
    let authority = ("certificate-authority-data", &*base64(&ca.pem));
    let chain = ("client-certificate-data", &*base64(&leaf.chain));
    let key = ("client-key-data", &*base64(&leaf.key));
    let name = ("tls-server-name", "inner.example");

    let access = parse(&kubeconfig(&[SERVER, authority, name], &[TOKEN])).unwrap();
    assert_eq!(access.server().host(), Some("api.runtime.example"));
    assert_eq!((access.token.as_deref(), access.namespace.as_str()), (Some("hush-hush"), "work"));
    assert!(access.identity.is_none() && access.tls_server_name.is_some());
    assert_eq!(access.ca.map(|ca| ca.len()), Some(1));

    let access = parse(&kubeconfig(&[SERVER], &[TOKEN])).unwrap();
    assert!(access.ca.is_none(), "the system's roots count");

    let access = parse(&kubeconfig(&[SERVER, authority], &[chain, key])).unwrap();
    assert!(access.token.is_none() && access.identity.is_some());
    let empty = [("exec", "null"), ("tokenFile", "\"\""), ("as", "\"\""), ("as-groups", "[]")];
    parse(&kubeconfig(
        &[SERVER, authority, ("insecure-skip-tls-verify", "false")],
        &[&empty[..], &[TOKEN]].concat(),
    ))
    .unwrap();
}

#[test]
fn kubeconfig_errors_name_the_field_and_hide_secrets() {
    let ca = Ca::new();
    let leaf = ca.issue(&["admin"]);
    let authority = base64(&ca.pem);
    let authority = ("certificate-authority-data", authority.as_str());
    let chain = base64(&leaf.chain);
    let chain = ("client-certificate-data", chain.as_str());
    let secret = base64("hush-hush");
    let cluster = |field| kubeconfig(&[SERVER, authority, field], &[TOKEN]);
    let user = |field| kubeconfig(&[SERVER, authority], &[TOKEN, field]);
    let server = |server| kubeconfig(&[("server", server), authority], &[TOKEN]);
    let only = |fields: &[(&str, &str)]| kubeconfig(&[SERVER, authority], fields);
    let full = only(&[TOKEN]);
    for (yaml, expected) in [
        (user(("exec", "{command: /bin/hush-hush}")), "uses exec,"),
        (user(("auth-provider", "{name: gcp}")), "uses auth-provider,"),
        (user(("tokenFile", "/hush-hush")), "uses tokenFile,"),
        (user(("client-certificate", "/hush-hush")), "uses client-certificate,"),
        (user(("client-key", "/hush-hush")), "uses client-key,"),
        (user(("username", "hush-hush")), "uses username,"),
        (user(("password", "hush-hush")), "uses password,"),
        (user(("as", "hush-hush")), "uses as,"),
        (user(("as-uid", "hush-hush")), "uses as-uid,"),
        (user(("as-groups", "[hush-hush]")), "uses as-groups,"),
        (user(("as-user-extra", "{a: [hush-hush]}")), "uses as-user-extra,"),
        (cluster(("certificate-authority", "/hush-hush")), "uses certificate-authority,"),
        (cluster(("proxy-url", "http://hush-hush")), "uses proxy-url,"),
        (cluster(("insecure-skip-tls-verify", "true")), "uses insecure-skip-tls-verify,"),
        (cluster(("insecure-skip-tls-verify", "\"yes\"")), "uses insecure-skip-tls-verify,"),
        (cluster(("tls-server-name", "\"a b\"")), "tls-server-name is not valid"),
        (server("http://api.runtime.example"), "plain http"),
        (server("api.runtime.example"), "server is not valid"),
        (server("https://user:hush-hush@api.runtime.example"), "server is not valid"),
        (server("https://api.runtime.example?a=hush-hush"), "server is not valid"),
        (server("\"https://\""), "server is not valid"),
        (server("https://KCP.example"), "denied by rule kcp.example"),
        (server("https://10.1.2.3:443"), "denied by rule 10.0.0.0/8"),
        (server("\"https://[::ffff:10.1.2.3]:443\""), "denied by rule 10.0.0.0/8"),
        (kubeconfig(&[SERVER, ("certificate-authority-data", "'***'")], &[TOKEN]), "must be base64"),
        (kubeconfig(&[SERVER, ("certificate-authority-data", &secret)], &[TOKEN]), "no PEM certificate"),
        (kubeconfig(&[authority], &[TOKEN]), "no server"),
        (only(&[]), "no token or client-certificate-data"),
        (only(&[("token", "\"hush-hush\\nX-Evil: 1\"")]), "token is not valid"),
        (only(&[("token", "[hush-hush]")]), "token is not valid"),
        (only(&[chain]), "no client-key-data"),
        (only(&[("client-key-data", &secret)]), "no client-certificate-data"),
        (only(&[chain, ("client-key-data", &secret)]), "client-key-data is not valid"),
        (full.replace("current-context: tide", ""), "no current-context"),
        (full.replace("current-context: tide", "current-context: gone"), "no context"),
        (full.replace("user: admin", "user: gone"), "no user"),
        (full.replace("cluster: shoot", "cluster: gone"), "no cluster"),
        (full.replace("- name: other\n  user", "- name: admin\n  user"), "there twice"),
        (full.replace("current-context: tide", "current-context: other"), "uses exec,"),
        (full.replace("token: hush-hush", "token: 'hush-hush"), "no valid YAML"),
        ("- hush-hush".to_owned(), "no current-context"),
        (String::new(), "no current-context"),
        (" ".repeat(64 * 1024 + 1), "larger than"),
    ] {
        let error = parse(&yaml).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        assert!(!format!("{error} {error:?}").contains("hush-hush"), "{error:?}");
    }
}

#[test]
fn kubeconfig_credentials_are_not_printed() {
    let ca = Ca::new();
    let access =
        parse(&kubeconfig(&[SERVER, ("certificate-authority-data", &base64(&ca.pem))], &[TOKEN])).unwrap();
    assert!(!format!("{access:?}").contains("hush-hush"));
}

proptest::proptest! {
    #[test]
    fn kubeconfig_parsing_never_panics(text in "\\PC*", at in 0usize..600) {
        let _ = parse(&text);
        let mut yaml = kubeconfig(&[SERVER], &[TOKEN]);
        yaml.insert_str(at.min(yaml.len()), &text);
        let _ = parse(&yaml);
    }
}
