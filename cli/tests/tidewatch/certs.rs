use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::tidewatch;

#[test]
fn an_existing_key_is_replaced_only_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (args, name) in [
        (&["certs", "ca"][..], "ca"),
        (&["certs", "server", "--ip", "127.0.0.1"], "server"),
        (&["certs", "client", "--runtime-id", "a", "--dns", "a.example"], "agent"),
    ] {
        let (code, _, said) = tidewatch(folder.path(), args);
        assert_eq!(code, Some(0), "{said}");
        let files = [at(&format!("{name}.crt")), at(&format!("{name}.key"))];
        let before = files.each_ref().map(|file| fs::read(file).unwrap());
        let (code, _, said) = tidewatch(folder.path(), args);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&format!("{name}.crt is there already")) && said.contains("--force"), "{said}");
        assert_eq!(files.each_ref().map(|file| fs::read(file).unwrap()), before);

        // One existing file suffices.
        fs::remove_file(&files[0]).unwrap();
        let (code, _, said) = tidewatch(folder.path(), args);
        assert!(code == Some(1) && said.contains(&format!("{name}.key is there already")), "{said}");
        assert!(!files[0].exists(), "half of it was written");

        fs::set_permissions(&files[1], fs::Permissions::from_mode(0o644)).unwrap();
        let (code, _, said) = tidewatch(folder.path(), &[args, &["--force"]].concat());
        assert_eq!(code, Some(0), "{said}");
        assert_ne!(fs::read(&files[1]).unwrap(), before[1]);
        assert_eq!(fs::metadata(&files[1]).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
