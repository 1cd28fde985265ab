data "aws_partition" "current" {}

locals {
  name       = coalesce(var.name, substr(var.bucket_name, 0, 49))
  bucket_arn = "arn:${data.aws_partition.current.partition}:s3:::${var.bucket_name}"

  # All actions that change an object. Replication writes without s3:PutObject.
  object_change = ["s3:PutObject*", "s3:DeleteObject*", "s3:AbortMultipartUpload", "s3:Replicate*"]

  # The value of aws:PrincipalArn in a role's sessions: the role on AWS, the session on some other
  # servers. The account is a wildcard, so that a plan need not look it up. The bucket policy grants
  # nothing to other accounts anyway.
  sessions = { for role in ["agents", "administrators"] : role => [
    "arn:${data.aws_partition.current.partition}:iam::*:role/${local.name}-${role}",
    "arn:${data.aws_partition.current.partition}:sts::*:assumed-role/${local.name}-${role}/*",
  ] }
}

resource "aws_s3_bucket" "this" {
  #checkov:skip=CKV_AWS_18:access logs are optional (access_logs); many accounts log data events with CloudTrail instead
  #checkov:skip=CKV_AWS_144:replication to a second region is the owner's decision; it has its own cost and data protection implications
  #checkov:skip=CKV_AWS_145:SSE-S3 is the default; kms_key_arn enables SSE-KMS
  #checkov:skip=CKV2_AWS_62:there are no consumers; skillfs detects changes by listing and by ETag
  bucket        = var.bucket_name
  force_destroy = var.force_destroy
  tags          = var.tags
}

# Keeps overwritten and deleted objects for old_version_days.
resource "aws_s3_bucket_versioning" "this" {
  bucket = aws_s3_bucket.this.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    # With a bucket key, S3 calls KMS occasionally rather than for every object.
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

# Disables ACLs. An ACL could grant access to an object in spite of all policies here.
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

  # Applies to everything in the account that may write to the bucket. It denies operations on
  # objects only: a principal that can change this policy can remove it, so nobody is locked out. A
  # user's own skills are not included, because the product may let customers edit them.
  statement {
    sid       = "OnlyAdministratorsPublish"
    effect    = "Deny"
    actions   = local.object_change
    resources = ["${local.bucket_arn}/shared/*/skills/*", "${local.bucket_arn}/*/.skillfs/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    # Agents may have a folder ".skillfs" in their workspace, and no pattern can distinguish it from
    # a user's. The next statement confines agents to their workspaces.
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

  # S3 rejects concurrent changes to a bucket's access settings.
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

    # A delete marker without an older version only slows down listings.
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

  # Rules for old versions require versioning.
  depends_on = [aws_s3_bucket_versioning.this]
}

resource "aws_s3_bucket_logging" "this" {
  count = var.access_logs == null ? 0 : 1

  bucket        = aws_s3_bucket.this.id
  target_bucket = var.access_logs.bucket
  target_prefix = coalesce(var.access_logs.prefix, "${var.bucket_name}/")
}
