variable "bucket_name" {
  description = "Name of the bucket that holds every tenant."
  type        = string

  # Dots are legal in bucket names, but break TLS for virtual-hosted requests.
  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket_name))
    error_message = "bucket_name takes 3 to 63 characters of a-z, 0-9 and '-', and neither begins nor ends with '-'."
  }
}

variable "name" {
  description = "Prefix of the names of roles and policies. The bucket's name unless told."
  type        = string
  default     = null

  # A role's name has 64 characters, and "-administrators" is the longest ending.
  validation {
    condition     = var.name == null || can(regex("^[A-Za-z0-9+=,.@_-]{1,49}$", var.name))
    error_message = "name takes 1 to 49 characters of A-Z, a-z, 0-9 and '+=,.@_-'."
  }
}

variable "tags" {
  description = "Tags of everything that can be tagged."
  type        = map(string)
  default     = {}
}

variable "force_destroy" {
  description = "Let `terraform destroy` delete a bucket that still holds objects. For trials only."
  type        = bool
  default     = false
}

# --- who may assume what -----------------------------------------------------

variable "agent_principal_arns" {
  description = "ARNs of the roles (or users) of the product's own service, which assumes the agents' role for each session."
  type        = list(string)

  # A trust in "*" would hand the whole role to anyone with an AWS account.
  validation {
    condition     = alltrue([for arn in var.agent_principal_arns : can(regex("^arn:aws[a-z-]*:(iam|sts)::[0-9]{12}:[^*]+$", arn))])
    error_message = "agent_principal_arns takes full IAM or STS ARNs, without '*'."
  }

  validation {
    condition     = length(var.agent_principal_arns) > 0
    error_message = "agent_principal_arns names nobody: somebody must be able to assume the agents' role."
  }
}

variable "agent_external_id" {
  description = "An external id that the product's service must name. Use one where the service runs in another account."
  type        = string
  default     = null
  sensitive   = true

  validation {
    condition     = var.agent_external_id == null || can(regex("^[A-Za-z0-9+=,.@:/_-]{2,1224}$", var.agent_external_id))
    error_message = "agent_external_id takes 2 to 1224 characters of A-Z, a-z, 0-9 and '+=,.@:/_-'."
  }
}

variable "administrator_principal_arns" {
  description = "Who may assume the administrators' role. Without any there is no such role, and nobody can write to shared libraries or publish."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.administrator_principal_arns : can(regex("^arn:aws[a-z-]*:(iam|sts)::[0-9]{12}:[^*]+$", arn))])
    error_message = "administrator_principal_arns takes full IAM or STS ARNs, without '*'."
  }
}

variable "auditor_principal_arns" {
  description = "Who may assume the auditors' role. Without any there is no such role."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.auditor_principal_arns : can(regex("^arn:aws[a-z-]*:(iam|sts)::[0-9]{12}:[^*]+$", arn))])
    error_message = "auditor_principal_arns takes full IAM or STS ARNs, without '*'."
  }
}

variable "require_mfa" {
  description = "Administrators and auditors must have used a second factor. Turn it off where they come through IAM Identity Center or another role: such sessions do not carry the fact."
  type        = bool
  default     = true
}

variable "permissions_boundary_arn" {
  description = "A permissions boundary for every role, where the account asks for one."
  type        = string
  default     = null
}

# --- agents ------------------------------------------------------------------

variable "agent_scoping" {
  description = "What confines an agent's session: `session_policy`, an inline policy passed to AssumeRole, or `session_tags`, tags that the role's own policy reads."
  type        = string
  default     = "session_policy"

  validation {
    condition     = contains(["session_policy", "session_tags"], var.agent_scoping)
    error_message = "agent_scoping is 'session_policy' or 'session_tags'."
  }
}

variable "tag_libraries" {
  description = "With `session_tags`: how many shared libraries a session can name, as tags `library1`, `library2` and so on."
  type        = number
  default     = 8

  # A managed policy holds 6,144 characters, and a library takes four strings of
  # it: twelve fit beside a bucket's longest name and a KMS key.
  validation {
    condition     = var.tag_libraries >= 0 && var.tag_libraries <= 12 && floor(var.tag_libraries) == var.tag_libraries
    error_message = "tag_libraries is a whole number from 0 to 12."
  }
}

variable "agents_may_write_tickets" {
  description = "The agents' role may write below `tickets/`. A session still needs the grant in its session policy. Not for `session_tags`, where every session would have it."
  type        = bool
  default     = false

  validation {
    condition     = !(var.agents_may_write_tickets && var.agent_scoping == "session_tags")
    error_message = "With agent_scoping = \"session_tags\" tickets are read-only: tags cannot tell the sessions that were granted writing from the others."
  }
}

variable "max_session_duration" {
  description = "The longest session of any role, in seconds."
  type        = number
  default     = 3600

  validation {
    condition     = var.max_session_duration >= 3600 && var.max_session_duration <= 43200
    error_message = "max_session_duration is 3600 to 43200 seconds, which is what IAM takes."
  }
}

# --- data --------------------------------------------------------------------

variable "kms_key_arn" {
  description = "A KMS key for default encryption. Without it S3 encrypts with keys of its own (SSE-S3)."
  type        = string
  default     = null

  # An alias would do for S3, but not in the roles' policies.
  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$", var.kms_key_arn))
    error_message = "kms_key_arn takes the ARN of a key, not of an alias."
  }
}

variable "old_version_days" {
  description = "Days until versions that were overwritten or deleted are gone. The time in which a mistake can be undone."
  type        = number
  default     = 90

  validation {
    condition     = var.old_version_days >= 1 && floor(var.old_version_days) == var.old_version_days
    error_message = "old_version_days is a whole number from 1."
  }
}

variable "abandoned_upload_days" {
  description = "Days until the parts of uploads that nobody completed are gone. They cost money and show up in no listing."
  type        = number
  default     = 7

  validation {
    condition     = var.abandoned_upload_days >= 1 && floor(var.abandoned_upload_days) == var.abandoned_upload_days
    error_message = "abandoned_upload_days is a whole number from 1."
  }
}

variable "thread_days" {
  description = "Days until files below `threads/` expire, counted from their last write. Never, unless told."
  type        = number
  default     = null

  validation {
    condition     = var.thread_days == null || try(var.thread_days >= 1 && floor(var.thread_days) == var.thread_days, false)
    error_message = "thread_days is null or a whole number from 1."
  }
}

variable "access_logs" {
  description = "Another bucket that takes S3's access logs, and where in it: below the bucket's name unless told. No logs without."
  # One object, so that whether there are logs is known before the bucket is.
  type = object({
    bucket = string
    prefix = optional(string)
  })
  default = null

  # A bucket that logs into itself logs its own logs.
  validation {
    condition     = try(var.access_logs.bucket, "") != var.bucket_name
    error_message = "access_logs.bucket must be another bucket."
  }

  validation {
    condition     = try(var.access_logs.prefix, null) == null || can(regex("^[^/].*/$", var.access_logs.prefix))
    error_message = "access_logs.prefix ends with '/' and does not begin with it."
  }
}
