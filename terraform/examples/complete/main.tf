# A complete setup on AWS: a KMS key, access logs, and all three roles.
#
#   terraform init
#   terraform apply -var bucket_name=acme-skillfs \
#     -var 'service_role_arns=["arn:aws:iam::123456789012:role/acme-api"]' \
#     -var 'administrator_arns=["arn:aws:iam::123456789012:role/acme-ops"]' \
#     -var 'auditor_arns=["arn:aws:iam::123456789012:role/acme-audit"]'

provider "aws" {
  region = var.region
}

module "skillfs" {
  source = "../.."

  bucket_name = var.bucket_name
  kms_key_arn = aws_kms_key.skillfs.arn

  agent_principal_arns         = var.service_role_arns
  administrator_principal_arns = var.administrator_arns
  auditor_principal_arns       = var.auditor_arns

  # They use other roles, which do not carry the MFA context.
  require_mfa = false

  old_version_days = 30
  thread_days      = 365
  # Refers to the bucket policy, because S3 must be allowed to deliver logs before logging is
  # enabled.
  access_logs = { bucket = aws_s3_bucket_policy.logs.bucket }

  tags = var.tags
}

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}

# Delegates access to IAM. The module's roles restrict the use of the key to their bucket.
data "aws_iam_policy_document" "key" {
  #checkov:skip=CKV_AWS_109:in a key policy, "*" is the key itself, and the account must be able to manage it
  #checkov:skip=CKV_AWS_111:in a key policy, "*" is the key itself, and the account must be able to manage it
  #checkov:skip=CKV_AWS_356:in a key policy, "*" is the key itself, and the account must be able to manage it
  statement {
    sid       = "Account"
    actions   = ["kms:*"]
    resources = ["*"]

    principals {
      type        = "AWS"
      identifiers = ["arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:root"]
    }
  }
}

resource "aws_kms_key" "skillfs" {
  description             = "Objects in ${var.bucket_name}"
  enable_key_rotation     = true
  deletion_window_in_days = 30
  policy                  = data.aws_iam_policy_document.key.json
  tags                    = var.tags
}

# --- the bucket for access logs ----------------------------------------------

resource "aws_s3_bucket" "logs" {
  #checkov:skip=CKV_AWS_18:a log bucket that logs to itself never stops
  #checkov:skip=CKV_AWS_21:S3 writes each log once, and nobody changes it
  #checkov:skip=CKV_AWS_144:logs are kept for months only, which does not justify a second region
  #checkov:skip=CKV_AWS_145:with SSE-S3, S3 can deliver access logs without permissions for a key
  #checkov:skip=CKV2_AWS_62:there are no consumers
  bucket = "${var.bucket_name}-logs"
  tags   = var.tags
}

resource "aws_s3_bucket_server_side_encryption_configuration" "logs" {
  bucket = aws_s3_bucket.logs.id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

resource "aws_s3_bucket_public_access_block" "logs" {
  bucket = aws_s3_bucket.logs.id

  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "logs" {
  bucket = aws_s3_bucket.logs.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "logs" {
  bucket = aws_s3_bucket.logs.id

  rule {
    id     = "old-logs"
    status = "Enabled"

    filter {}

    expiration {
      days = 400
    }

    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }
}

data "aws_iam_policy_document" "logs" {
  statement {
    sid       = "S3DeliversLogs"
    actions   = ["s3:PutObject"]
    resources = ["${aws_s3_bucket.logs.arn}/*"]

    principals {
      type        = "Service"
      identifiers = ["logging.s3.amazonaws.com"]
    }

    # Otherwise, any bucket in any account could deliver logs to this one.
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }

  statement {
    sid       = "TlsOnly"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [aws_s3_bucket.logs.arn, "${aws_s3_bucket.logs.arn}/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

resource "aws_s3_bucket_policy" "logs" {
  bucket     = aws_s3_bucket.logs.id
  policy     = data.aws_iam_policy_document.logs.json
  depends_on = [aws_s3_bucket_public_access_block.logs]
}
