data "aws_partition" "current" {}

locals {
  name       = coalesce(var.name, substr(var.bucket_name, 0, 49))
  bucket_arn = "arn:${data.aws_partition.current.partition}:s3:::${var.bucket_name}"

  # Everything that changes an object. Replication writes without s3:PutObject.
  object_change = ["s3:PutObject*", "s3:DeleteObject*", "s3:AbortMultipartUpload", "s3:Replicate*"]

  # What aws:PrincipalArn is in a role's sessions: on AWS the role, on some other
  # servers the session. The account is left open, so that a plan need not ask for
  # it; the bucket's policy lets nobody of another account in anyway.
  sessions = { for role in ["agents", "administrators"] : role => [
    "arn:${data.aws_partition.current.partition}:iam::*:role/${local.name}-${role}",
    "arn:${data.aws_partition.current.partition}:sts::*:assumed-role/${local.name}-${role}/*",
  ] }
}

resource "aws_s3_bucket" "this" {
  #checkov:skip=CKV_AWS_18:access logs are an option, access_logs: many accounts log data events with CloudTrail instead
  #checkov:skip=CKV_AWS_144:a copy in a second region is the owner's decision, with its own cost and its own data protection question
  #checkov:skip=CKV_AWS_145:SSE-S3 is the default; kms_key_arn turns it into SSE-KMS
  #checkov:skip=CKV2_AWS_62:nothing listens: skillfs finds changes by listing and by ETag
  bucket        = var.bucket_name
  force_destroy = var.force_destroy
  tags          = var.tags
}

# Publishing, editing and deleting keep what was there for old_version_days.
resource "aws_s3_bucket_versioning" "this" {
  bucket = aws_s3_bucket.this.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    # With a bucket key S3 asks KMS once in a while, not once an object.
    bucket_key_enabled = var.kms_key_arn != null

    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket = aws_s3_bucket.this.id

  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

# No ACLs: with them an object could be opened to others beside every policy here.
resource "aws_s3_bucket_ownership_controls" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

data "aws_iam_policy_document" "bucket" {
  statement {
    sid       = "TlsOnly"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [local.bucket_arn, "${local.bucket_arn}/*"]

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

  # Whatever else in the account may write to the bucket. Objects only: who may
  # change this policy can take it away, so nobody is locked out. Not a customer's
  # own skills, which the product may let customers edit.
  statement {
    sid       = "OnlyAdministratorsPublish"
    effect    = "Deny"
    actions   = local.object_change
    resources = ["${local.bucket_arn}/shared/*/skills/*", "${local.bucket_arn}/*/.skillfs/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    # Agents may have a folder ".skillfs" in their workspace, and no pattern tells
    # that from a user's. The next statement keeps them there.
    condition {
      test     = "ArnNotLike"
      variable = "aws:PrincipalArn"
      values   = concat(local.sessions["agents"], contains(local.roles, "administrators") ? local.sessions["administrators"] : [])
    }
  }

  statement {
    sid           = "AgentsWriteToThreadsAndTickets"
    effect        = "Deny"
    actions       = local.object_change
    not_resources = ["${local.bucket_arn}/threads/*", "${local.bucket_arn}/tickets/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "ArnLike"
      variable = "aws:PrincipalArn"
      values   = local.sessions["agents"]
    }
  }
}

resource "aws_s3_bucket_policy" "this" {
  bucket = aws_s3_bucket.this.id
  policy = data.aws_iam_policy_document.bucket.json

  # S3 refuses two changes of a bucket's access at once.
  depends_on = [aws_s3_bucket_public_access_block.this]
}

resource "aws_s3_bucket_lifecycle_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    id     = "old-versions"
    status = "Enabled"

    filter {}

    noncurrent_version_expiration {
      noncurrent_days = var.old_version_days
    }

    # A delete marker with no version behind it is only in the way of listings.
    expiration {
      expired_object_delete_marker = true
    }
  }

  rule {
    id     = "abandoned-uploads"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = var.abandoned_upload_days
    }
  }

  dynamic "rule" {
    for_each = var.thread_days[*]

    content {
      id     = "threads"
      status = "Enabled"

      filter {
        prefix = "threads/"
      }

      expiration {
        days = rule.value
      }
    }
  }

  # Rules about old versions need versions.
  depends_on = [aws_s3_bucket_versioning.this]
}

resource "aws_s3_bucket_logging" "this" {
  count = var.access_logs == null ? 0 : 1

  bucket        = aws_s3_bucket.this.id
  target_bucket = var.access_logs.bucket
  target_prefix = coalesce(var.access_logs.prefix, "${var.bucket_name}/")
}
