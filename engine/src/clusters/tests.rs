//! Kubeconfigs in a table, and a client against a TLS server in this process.

mod client;
mod kubeconfig;
mod server;

use k8s_openapi::ByteString;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

struct Ca {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

struct Leaf {
    chain: String,
    key: String,
}

impl Ca {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, names: &[&str]) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        Leaf { chain: certificate.pem(), key: key.serialize_pem() }
    }
}

fn base64(text: &str) -> String {
    let value = serde_json::to_value(ByteString(text.as_bytes().to_vec())).unwrap();
    value.as_str().unwrap().to_owned()
}

fn kubeconfig(cluster: &[(&str, &str)], user: &[(&str, &str)]) -> String {
    let fields = |fields: &[(&str, &str)]| -> String {
        let fields: Vec<_> = fields.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        fields.join(", ")
    };
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: tide\nclusters:\n- name: shoot\n  cluster: {{{}}}\n- name: \
         other\n  cluster: {{server: http://other}}\nusers:\n- name: other\n  user: {{exec: {{command: rm}}}}\n- name: \
         admin\n  user: {{{}}}\ncontexts:\n- name: other\n  context: {{cluster: other, user: other}}\n- name: tide\n  \
         context: {{cluster: shoot, user: admin, namespace: work}}\n",
        fields(cluster),
        fields(user)
    )
}
