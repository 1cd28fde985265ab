# A setup on a local server: LocalStack, MiniStack or another one that supports
# S3, IAM and STS.
#
#   localstack/start --no-data
#   terraform init
#   terraform apply
#
# LocalStack does not enforce IAM, so it only shows that the module can be applied.
# MiniStack with AUTH=true does: see ../../tests.

provider "aws" {
  region     = "us-east-1"
  access_key = "test"
  secret_key = "test"
  # For servers that use TLS with their own certificate authority.
  custom_ca_bundle = var.ca_bundle

  # Use path-style requests, and skip checks that need EC2 metadata or a real account.
  s3_use_path_style           = true
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_requesting_account_id  = true

  endpoints {
    iam = var.endpoint_url
    s3  = var.endpoint_url
    sts = var.endpoint_url
  }
}

module "skillfs" {
  source = "../.."

  bucket_name   = var.bucket_name
  force_destroy = true

  agent_scoping = var.agent_scoping

  agent_principal_arns         = [var.service_arn]
  administrator_principal_arns = var.administrator_arns == null ? [var.service_arn] : var.administrator_arns
  auditor_principal_arns       = [var.service_arn]
  require_mfa                  = false
}
