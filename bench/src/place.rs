//! Where a bucket is, and how it is entered.

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
    /// With the key pair of the store that is started here.
    pub(crate) fn embedded(endpoint: &str, bucket: &str) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            bucket: bucket.to_owned(),
            access_key: ACCESS_KEY_ID.to_owned(),
            secret_key: SECRET_ACCESS_KEY.to_owned(),
            token: None,
        }
    }

    /// With the key pair of the environment.
    pub(crate) fn from_env(endpoint: &str, bucket: &str) -> Result<Self> {
        Ok(Self {
            endpoint: endpoint.to_owned(),
            bucket: bucket.to_owned(),
            access_key: std::env::var("AWS_ACCESS_KEY_ID").context("AWS_ACCESS_KEY_ID is not set")?,
            secret_key: std::env::var("AWS_SECRET_ACCESS_KEY").context("AWS_SECRET_ACCESS_KEY is not set")?,
            token: std::env::var("AWS_SESSION_TOKEN").ok(),
        })
    }

    /// The same bucket behind another address.
    pub(crate) fn at(&self, endpoint: &str) -> Self {
        Self { endpoint: endpoint.to_owned(), ..self.clone() }
    }

    /// Tells a process of ours where the bucket is: the address in its arguments, the keys in its environment.
    /// It ends with us.
    pub(crate) fn give_to(&self, command: &mut Command) {
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
