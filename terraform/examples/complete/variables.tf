variable "region" {
  description = "The AWS region."
  type        = string
  default     = "eu-central-1"
}

variable "bucket_name" {
  description = "The bucket's name; the one for logs is named after it."
  type        = string

  validation {
    condition     = length(var.bucket_name) <= 58
    error_message = "bucket_name leaves room for \"-logs\": at most 58 characters."
  }
}

variable "service_role_arns" {
  description = "The roles that the product's service runs on."
  type        = list(string)
}

variable "administrator_arns" {
  description = "Who publishes skills."
  type        = list(string)
}

variable "auditor_arns" {
  description = "Who looks at it all."
  type        = list(string)
}

variable "tags" {
  description = "Tags of everything."
  type        = map(string)
  default     = { app = "skillfs" }
}
