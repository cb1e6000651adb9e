//! What there is to hand out. Nobody connects to the nodes, so they need not exist.

use std::fmt::Write as _;

/// A pool of so many machines.
pub(crate) fn machines(count: usize) -> String {
    let mut text = String::from(
        "labels: [{name: small}]\n\
         providers:\n\
         - name: lab\n  \
           driver: static\n  \
           pools:\n  \
           - name: main\n    \
             nodes:\n",
    );
    for number in 0..count {
        let _ = writeln!(
            text,
            "    - {{name: 127.{}.{}.{}, labels: [small], host-key-checking: false, host-key: ssh-ed25519 AAAA}}",
            1 + number / 62_500,
            number / 250 % 250,
            1 + number % 250,
        );
    }
    text
}

/// A simulated cloud with room for so many servers, each ready 0.1 s after it was asked for. Python's own is like
/// that, and does not know the key `simulate`.
pub(crate) fn cloud(servers: usize) -> String {
    format!(
        "labels: [{{name: small}}]\n\
         providers:\n\
         - name: cloud\n  \
           driver: fake\n  \
           cloud: fake\n  \
           rate: 0.0001\n  \
           simulate: {{boot-time: 0.1, quota: {{cores: -1, instances: -1, ram: -1}}}}\n  \
           cloud-images: [{{name: Fake Precise}}]\n  \
           pools:\n  \
           - name: main\n    \
             max-servers: {servers}\n    \
             labels: [{{name: small, cloud-image: Fake Precise, flavor-name: Fake Flavor}}]\n"
    )
}
