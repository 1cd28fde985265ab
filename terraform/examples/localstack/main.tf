# Everything, on a server of your own: LocalStack, MiniStack or another that
# speaks S3, IAM and STS.
#
#   localstack/start --no-data
#   terraform init
#   terraform apply
#
# LocalStack does not enforce IAM, so there it shows only that the module applies.
# MiniStack with AUTH=true does: see ../../tests.

provider "aws" {
  region     = "us-east-1"
  access_key = "test"
  secret_key = "test"
  # Set for servers that speak TLS with a certificate of their own.
  custom_ca_bundle = var.ca_bundle

  # There are no buckets as host names, no instance and no real account here.
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
