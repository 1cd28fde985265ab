# The agents' role, in one of two variants (agent_scoping):
#
# session_policy  The role reaches every tenant. Each session is confined by the
#                 inline policy it was opened with, policies/session.json.tftpl.
# session_tags    The role reaches what the session's tags name, and nothing
#                 without tags.
#
# The two policies are never attached together, because their union would be the wider one.

locals {
  object_write = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]

  # The default value of a tag that was not passed. It is not a valid identifier, so no key is below
  # "shared/./". Without a default, AWS may drop an entire statement because of one undefined
  # variable.
  nobody = "."

  tag         = { for name in local.tag_names : name => "$${aws:PrincipalTag/${name}, '${local.nobody}'}" }
  library_ids = [for n in range(var.tag_libraries) : "library${n + 1}"]
  tag_names   = concat(["user", "thread", "ticket"], local.library_ids)

  tagged_homes = concat([local.tag["user"]], [for name in local.library_ids : "shared/${local.tag[name]}"])
  tagged_read = concat(
    ["tickets/${local.tag["ticket"]}/*"],
    flatten([for home in local.tagged_homes : ["${home}/skills/*", "${home}/.skillfs/*"]]),
  )
  tagged_write = ["threads/${local.tag["thread"]}/*"]
}

data "aws_iam_policy_document" "agents_wide" {
  statement {
    sid       = "Workspaces"
    actions   = concat(["s3:GetObject"], local.object_write)
    resources = ["${local.bucket_arn}/threads/*"]
  }

  statement {
    sid       = "Tickets"
    actions   = concat(["s3:GetObject"], var.agents_may_write_tickets ? local.object_write : [])
    resources = ["${local.bucket_arn}/tickets/*"]
  }

  statement {
    sid       = "Libraries"
    actions   = ["s3:GetObject"]
    resources = ["${local.bucket_arn}/*/skills/*", "${local.bucket_arn}/*/.skillfs/*"]
  }

  # Only below a single tenant, so that not even the role without a session policy can enumerate
  # tenants: '?*' requires at least one character, so "threads/" alone does not match.
  statement {
    sid       = "ListOneTenant"
    actions   = ["s3:ListBucket"]
    resources = [local.bucket_arn]

    condition {
      test     = "StringLike"
      variable = "s3:prefix"
      values   = ["threads/?*/*", "tickets/?*/*", "?*/skills/*", "?*/.skillfs/*"]
    }
  }

  source_policy_documents = [data.aws_iam_policy_document.use_key["agents"].json]
}

data "aws_iam_policy_document" "agents_tagged" {
  statement {
    sid       = "Workspace"
    actions   = concat(["s3:GetObject"], local.object_write)
    resources = [for pattern in local.tagged_write : "${local.bucket_arn}/${pattern}"]
  }

  statement {
    sid       = "TicketAndLibraries"
    actions   = ["s3:GetObject"]
    resources = [for pattern in local.tagged_read : "${local.bucket_arn}/${pattern}"]
  }

  statement {
    sid       = "ListTheSame"
    actions   = ["s3:ListBucket"]
    resources = [local.bucket_arn]

    condition {
      test     = "StringLike"
      variable = "s3:prefix"
      values   = concat(local.tagged_write, local.tagged_read)
    }
  }

  source_policy_documents = [data.aws_iam_policy_document.use_key["agents"].json]
}

data "aws_iam_policy_document" "agents_trust" {
  statement {
    sid     = "OpenSessions"
    actions = ["sts:AssumeRole"]

    principals {
      type        = "AWS"
      identifiers = var.agent_principal_arns
    }

    dynamic "condition" {
      for_each = var.agent_external_id[*]

      content {
        test     = "StringEquals"
        variable = "sts:ExternalId"
        values   = [condition.value]
      }
    }
  }

  # A tag may name only a single tenant. AWS allows '/' in a tag: the user "threads/t2" would
  # otherwise reach "threads/t2/skills/".
  dynamic "statement" {
    for_each = var.agent_scoping == "session_tags" ? [1] : []

    content {
      sid     = "NameTenants"
      actions = ["sts:TagSession"]

      principals {
        type        = "AWS"
        identifiers = var.agent_principal_arns
      }

      condition {
        test     = "ForAllValues:StringEquals"
        variable = "aws:TagKeys"
        values   = local.tag_names
      }

      # The top-level prefixes that are not users. The user "shared" would reach a library named
      # "skills".
      condition {
        test     = "StringNotEquals"
        variable = "aws:RequestTag/user"
        values   = ["threads", "tickets", "shared"]
      }

      dynamic "condition" {
        for_each = toset(local.tag_names)

        content {
          test     = "StringNotLike"
          variable = "aws:RequestTag/${condition.value}"
          values   = ["*/*", ".*"]
        }
      }
    }
  }
}

resource "aws_iam_role" "agents" {
  name                 = "${local.name}-agents"
  description          = "Agents' sessions in ${var.bucket_name}, each confined by its ${replace(var.agent_scoping, "_", " ")}."
  assume_role_policy   = data.aws_iam_policy_document.agents_trust.json
  max_session_duration = var.max_session_duration
  permissions_boundary = var.permissions_boundary_arn
  tags                 = var.tags
}

resource "aws_iam_policy" "agents" {
  name        = "${local.name}-agents"
  description = "What agents' sessions in ${var.bucket_name} can have at most."
  policy      = var.agent_scoping == "session_tags" ? data.aws_iam_policy_document.agents_tagged.json : data.aws_iam_policy_document.agents_wide.json
  tags        = var.tags

  lifecycle {
    # IAM does not count whitespace.
    precondition {
      condition     = length(replace(data.aws_iam_policy_document.agents_tagged.json, "/\\s/", "")) <= 6144
      error_message = "The tag-based policy exceeds IAM's limit of 6,144 characters: lower tag_libraries."
    }
  }
}

resource "aws_iam_role_policy_attachment" "agents" {
  role       = aws_iam_role.agents.name
  policy_arn = aws_iam_policy.agents.arn
}
