variable "bucket_name" {
  description = "Name of the bucket for all tenants."
  type        = string

  # Dots are valid in bucket names, but break TLS for virtual-hosted requests.
  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket_name))
    error_message = "bucket_name must have 3 to 63 characters of a-z, 0-9 and '-', and must not begin or end with '-'."
  }
}

variable "name" {
  description = "Name prefix of roles and policies. Defaults to the bucket name."
  type        = string
  default     = null

  # A role name has at most 64 characters, and "-administrators" is the longest suffix.
  validation {
    condition     = var.name == null || can(regex("^[A-Za-z0-9+=,.@_-]{1,49}$", var.name))
    error_message = "name must have 1 to 49 characters of A-Z, a-z, 0-9 and '+=,.@_-'."
  }
}

variable "tags" {
  description = "Tags for all resources that support them."
  type        = map(string)
  default     = {}
}

variable "force_destroy" {
  description = "Allow `terraform destroy` to delete a bucket that is not empty. For tests only."
  type        = bool
  default     = false
}

# --- trust -------------------------------------------------------------------

variable "agent_principal_arns" {
  description = "ARNs of the roles (or users) of the product's own service, which assumes the agents' role for each session."
  type        = list(string)

  # Trusting "*" would give the entire role to anyone with an AWS account.
  validation {
    condition     = alltrue([for arn in var.agent_principal_arns : can(regex("^arn:aws[a-z-]*:(iam|sts)::[0-9]{12}:[^*]+$", arn))])
    error_message = "agent_principal_arns must be full IAM or STS ARNs, without '*'."
  }

  validation {
    condition     = length(var.agent_principal_arns) > 0
    error_message = "agent_principal_arns is empty: at least one principal must be able to assume the agents' role."
  }
}

variable "agent_external_id" {
  description = "An external ID that the product's service must pass. Use one if the service runs in another account."
  type        = string
  default     = null
  sensitive   = true

  validation {
    condition     = var.agent_external_id == null || can(regex("^[A-Za-z0-9+=,.@:/_-]{2,1224}$", var.agent_external_id))
    error_message = "agent_external_id must have 2 to 1224 characters of A-Z, a-z, 0-9 and '+=,.@:/_-'."
  }
}

variable "administrator_principal_arns" {
  description = "ARNs of principals that may assume the administrators' role. If empty, the role is not created, and nobody can write to shared libraries or publish."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.administrator_principal_arns : can(regex("^arn:aws[a-z-]*:(iam|sts)::[0-9]{12}:[^*]+$", arn))])
    error_message = "administrator_principal_arns must be full IAM or STS ARNs, without '*'."
  }
}

variable "auditor_principal_arns" {
  description = "ARNs of principals that may assume the auditors' role. If empty, the role is not created."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.auditor_principal_arns : can(regex("^arn:aws[a-z-]*:(iam|sts)::[0-9]{12}:[^*]+$", arn))])
    error_message = "auditor_principal_arns must be full IAM or STS ARNs, without '*'."
  }
}

variable "require_mfa" {
  description = "Require MFA for administrators and auditors. Turn it off if they use IAM Identity Center or another role, because such sessions do not carry the MFA context."
  type        = bool
  default     = true
}

variable "permissions_boundary_arn" {
  description = "ARN of a permissions boundary for all roles, if the account requires one."
  type        = string
  default     = null
}

# --- agents ------------------------------------------------------------------

variable "agent_scoping" {
  description = "How agents' sessions are confined: `session_policy`, an inline policy passed to AssumeRole, or `session_tags`, session tags that the role's policy reads."
  type        = string
  default     = "session_policy"

  validation {
    condition     = contains(["session_policy", "session_tags"], var.agent_scoping)
    error_message = "agent_scoping must be 'session_policy' or 'session_tags'."
  }
}

variable "tag_libraries" {
  description = "With `session_tags`: the number of shared libraries that a session can name with the tags `library1`, `library2` and so on."
  type        = number
  default     = 8

  # A managed policy has at most 6,144 characters, and each library needs four strings. Twelve
  # libraries fit with the longest bucket name and a KMS key.
  validation {
    condition     = var.tag_libraries >= 0 && var.tag_libraries <= 12 && floor(var.tag_libraries) == var.tag_libraries
    error_message = "tag_libraries must be an integer from 0 to 12."
  }
}

variable "agents_may_write_tickets" {
  description = "Allow the agents' role to write below `tickets/`. A session also needs the grant in its session policy. Not available with `session_tags`, where every session would have it."
  type        = bool
  default     = false

  validation {
    condition     = !(var.agents_may_write_tickets && var.agent_scoping == "session_tags")
    error_message = "With agent_scoping = \"session_tags\", tickets are read-only, because tags cannot distinguish sessions with and without the grant."
  }
}

variable "max_session_duration" {
  description = "Maximum session duration of all roles, in seconds."
  type        = number
  default     = 3600

  validation {
    condition     = var.max_session_duration >= 3600 && var.max_session_duration <= 43200
    error_message = "max_session_duration must be 3600 to 43200 seconds, the range that IAM allows."
  }
}

# --- data --------------------------------------------------------------------

variable "kms_key_arn" {
  description = "ARN of a KMS key for default encryption. If not set, S3 encrypts with its own keys (SSE-S3)."
  type        = string
  default     = null

  # S3 accepts an alias, but the roles' policies need the key.
  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$", var.kms_key_arn))
    error_message = "kms_key_arn must be the ARN of a key, not of an alias."
  }
}

variable "old_version_days" {
  description = "Number of days for which overwritten and deleted versions are kept. Mistakes can be undone within this time."
  type        = number
  default     = 90

  validation {
    condition     = var.old_version_days >= 1 && floor(var.old_version_days) == var.old_version_days
    error_message = "old_version_days must be an integer of at least 1."
  }
}

variable "abandoned_upload_days" {
  description = "Number of days after which incomplete multipart uploads are deleted. They cost money and do not appear in listings."
  type        = number
  default     = 7

  validation {
    condition     = var.abandoned_upload_days >= 1 && floor(var.abandoned_upload_days) == var.abandoned_upload_days
    error_message = "abandoned_upload_days must be an integer of at least 1."
  }
}

variable "thread_days" {
  description = "Number of days after which files below `threads/` expire, counted from their last write. Default: never."
  type        = number
  default     = null

  validation {
    condition     = var.thread_days == null || try(var.thread_days >= 1 && floor(var.thread_days) == var.thread_days, false)
    error_message = "thread_days must be null or an integer of at least 1."
  }
}

variable "access_logs" {
  description = "The bucket for S3 access logs, and a key prefix in it, which defaults to the bucket name. If not set, there are no access logs."
  # A single object, so that it is known at plan time whether there are logs, even if the bucket is
  # not.
  type = object({
    bucket = string
    prefix = optional(string)
  })
  default = null

  # A bucket that logs to itself also logs the delivery of its logs.
  validation {
    condition     = try(var.access_logs.bucket, "") != var.bucket_name
    error_message = "access_logs.bucket must be another bucket."
  }

  validation {
    condition     = try(var.access_logs.prefix, null) == null || can(regex("^[^/].*/$", var.access_logs.prefix))
    error_message = "access_logs.prefix must end with '/' and must not begin with it."
  }
}
