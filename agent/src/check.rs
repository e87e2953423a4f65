//! `--check`: validates the configured files without connections.

use crate::{
    client,
    config::{Config, Credentials},
    start_error::StartError,
};
use jiff::Timestamp;
use tidewatch_tls::{Bundle, BundleError, Files, read_file};

pub(crate) async fn check(config: &Config, now: Timestamp) -> Result<String, StartError> {
    let Config { receiver, kubeconfig, .. } = config;
    receiver.proxy(|name| std::env::var(name).ok())?;
    let mut good = match receiver.credentials()? {
        Credentials::Files(files) => check_files(&files, now).await?,
        Credentials::Enrolment { ca, .. } => {
            read_file(&ca).await?;
            "the agent requests its certificate, the CA file exists".to_owned()
        }
    };
    // Without a kubeconfig, the agent's own environment decides.
    if let Some(kubeconfig) = kubeconfig {
        client::client(Some(kubeconfig)).await?;
        good.push_str(", the kubeconfig can be used");
    }
    Ok(good)
}

async fn check_files(files: &Files, now: Timestamp) -> Result<String, StartError> {
    let pem = files.read().await?;
    let bundle = Bundle::parse(&pem).and_then(|bundle| {
        bundle.check(now)?;
        bundle.client().map(|_| bundle)
    });
    let not_after = bundle.map_err(|error| of_file(files, error))?.not_after();
    Ok(format!("the certificate fits its key and ends at {not_after}, the CA can be read"))
}

/// Returns the error with the file that caused it.
pub(crate) fn of_file(files: &Files, source: BundleError) -> StartError {
    let file = match &source {
        BundleError::Certificates { part, .. } | BundleError::Malformed { part, .. }
            if part.contains("CA") =>
        {
            &files.ca
        }
        BundleError::NoCertificate(part) | BundleError::TooMany(part) if part.contains("CA") => &files.ca,
        BundleError::Verifier(_) => &files.ca,
        BundleError::Key | BundleError::KeyMismatch => &files.key,
        _ => &files.cert,
    };
    StartError::Tls { file: file.clone(), source }
}
