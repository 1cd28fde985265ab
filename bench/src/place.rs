//! The endpoint, bucket and credentials of a store.

use std::process::Stdio;

use anyhow::{Context, Result};
use skillfs::embedded::{ACCESS_KEY_ID, SECRET_ACCESS_KEY};
use tokio::process::Command;

pub(crate) const REGION: &str = "us-east-1";

#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) endpoint: String,
    pub(crate) bucket: String,
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
    pub(crate) token: Option<String>,
}

impl Place {
    /// With the credentials of the embedded store.
    pub(crate) fn embedded(endpoint: &str, bucket: &str) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            bucket: bucket.to_owned(),
            access_key: ACCESS_KEY_ID.to_owned(),
            secret_key: SECRET_ACCESS_KEY.to_owned(),
            token: None,
        }
    }

    /// With credentials from the environment.
    pub(crate) fn from_env(endpoint: &str, bucket: &str) -> Result<Self> {
        Ok(Self {
            endpoint: endpoint.to_owned(),
            bucket: bucket.to_owned(),
            access_key: std::env::var("AWS_ACCESS_KEY_ID").context("AWS_ACCESS_KEY_ID is not set")?,
            secret_key: std::env::var("AWS_SECRET_ACCESS_KEY").context("AWS_SECRET_ACCESS_KEY is not set")?,
            token: std::env::var("AWS_SESSION_TOKEN").ok(),
        })
    }

    /// The same bucket at another endpoint.
    pub(crate) fn at(&self, endpoint: &str) -> Self {
        Self { endpoint: endpoint.to_owned(), ..self.clone() }
    }

    /// Configures a child process to use this bucket: the location as arguments, the credentials in the
    /// environment. The child is killed on drop.
    pub(crate) fn configure(&self, command: &mut Command) {
        command
            .args([&self.endpoint, &self.bucket])
            .env("AWS_ACCESS_KEY_ID", &self.access_key)
            .env("AWS_SECRET_ACCESS_KEY", &self.secret_key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        if let Some(token) = &self.token {
            command.env("AWS_SESSION_TOKEN", token);
        }
    }
}
