# Administrators manage libraries: they publish, index, verify and roll back. Auditors can see the
# bucket's settings, its keys, and what was published. Neither can read what customers store in
# threads and tickets.

locals {
  people = {
    administrators = var.administrator_principal_arns
    auditors       = var.auditor_principal_arns
  }
  # A set with static keys, so that the ARNs may be unknown until apply.
  roles = toset([for name, arns in local.people : name if length(arns) > 0])

  key_actions = {
    agents         = ["kms:Decrypt", "kms:GenerateDataKey"]
    administrators = ["kms:Decrypt", "kms:GenerateDataKey"]
    auditors       = ["kms:Decrypt"]
  }
}

# Empty without a key.
data "aws_iam_policy_document" "use_key" {
  for_each = local.key_actions

  dynamic "statement" {
    for_each = var.kms_key_arn[*]

    content {
      sid       = "UseKey"
      actions   = each.value
      resources = [statement.value]

      # Only through S3 and only for this bucket, whatever else the key protects.
      condition {
        test     = "StringLike"
        variable = "kms:ViaService"
        values   = ["s3.*.amazonaws.com", "s3.*.amazonaws.com.cn"]
      }

      condition {
        test     = "StringLike"
        variable = "kms:EncryptionContext:aws:s3:arn"
        values   = [local.bucket_arn, "${local.bucket_arn}/*"]
      }
    }
  }
}

data "aws_iam_policy_document" "administrators" {
  statement {
    sid       = "Libraries"
    actions   = concat(["s3:GetObject", "s3:GetObjectVersion"], local.object_write)
    resources = ["${local.bucket_arn}/*/skills/*", "${local.bucket_arn}/*/.skillfs/*"]
  }

  # No s3:DeleteObjectVersion, so that anything an administrator deletes can be restored.
  statement {
    sid = "LookAround"
    actions = [
      "s3:GetBucketLocation",
      "s3:GetBucketVersioning",
      "s3:ListBucket",
      "s3:ListBucketMultipartUploads",
      "s3:ListBucketVersions",
    ]
    resources = [local.bucket_arn]
  }

  # '*/skills/*' also matches a folder "skills" in a customer's thread.
  statement {
    sid       = "NotCustomersFiles"
    effect    = "Deny"
    actions   = ["s3:*Object*", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    resources = ["${local.bucket_arn}/threads/*", "${local.bucket_arn}/tickets/*"]
  }

  source_policy_documents = [data.aws_iam_policy_document.use_key["administrators"].json]
}

data "aws_iam_policy_document" "auditors" {
  statement {
    sid       = "Libraries"
    actions   = ["s3:GetObject", "s3:GetObjectVersion"]
    resources = ["${local.bucket_arn}/*/skills/*", "${local.bucket_arn}/*/.skillfs/*"]
  }

  statement {
    sid = "SettingsAndNames"
    actions = [
      "s3:GetBucketAcl",
      "s3:GetBucketLocation",
      "s3:GetBucketLogging",
      "s3:GetBucketOwnershipControls",
      "s3:GetBucketPolicy",
      "s3:GetBucketPolicyStatus",
      "s3:GetBucketPublicAccessBlock",
      "s3:GetBucketTagging",
      "s3:GetBucketVersioning",
      "s3:GetEncryptionConfiguration",
      "s3:GetLifecycleConfiguration",
      "s3:ListBucket",
      "s3:ListBucketMultipartUploads",
      "s3:ListBucketVersions",
    ]
    resources = [local.bucket_arn]
  }

  statement {
    sid       = "NotCustomersFiles"
    effect    = "Deny"
    actions   = ["s3:*Object*"]
    resources = ["${local.bucket_arn}/threads/*", "${local.bucket_arn}/tickets/*"]
  }

  source_policy_documents = [data.aws_iam_policy_document.use_key["auditors"].json]
}

data "aws_iam_policy_document" "people_trust" {
  for_each = local.roles

  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "AWS"
      identifiers = local.people[each.key]
    }

    dynamic "condition" {
      for_each = var.require_mfa ? [1] : []

      content {
        test     = "Bool"
        variable = "aws:MultiFactorAuthPresent"
        values   = ["true"]
      }
    }
  }
}

resource "aws_iam_role" "people" {
  for_each = local.roles

  name                 = "${local.name}-${each.key}"
  description          = "${title(each.key)} of the skill libraries in ${var.bucket_name}."
  assume_role_policy   = data.aws_iam_policy_document.people_trust[each.key].json
  max_session_duration = var.max_session_duration
  permissions_boundary = var.permissions_boundary_arn
  tags                 = var.tags
}

resource "aws_iam_policy" "people" {
  for_each = local.roles

  name        = "${local.name}-${each.key}"
  description = "What ${each.key} of the skill libraries in ${var.bucket_name} may do."
  policy      = each.key == "administrators" ? data.aws_iam_policy_document.administrators.json : data.aws_iam_policy_document.auditors.json
  tags        = var.tags
}

resource "aws_iam_role_policy_attachment" "people" {
  for_each = local.roles

  role       = aws_iam_role.people[each.key].name
  policy_arn = aws_iam_policy.people[each.key].arn
}
