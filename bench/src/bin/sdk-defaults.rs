//! `aws-sdk-s3` as people get it, on the system's allocator: an allocator is chosen once a program, so this is
//! one of its own. The benchmark starts it.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    skillfs_bench::sdk_defaults().await
}
