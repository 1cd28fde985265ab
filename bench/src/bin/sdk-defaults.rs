//! `aws-sdk-s3` with its default settings and the system allocator. This is a separate program because an
//! allocator is chosen per program. The benchmark starts it.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    skillfs_bench::sdk_defaults().await
}
