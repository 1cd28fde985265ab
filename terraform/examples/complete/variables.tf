variable "region" {
  description = "The AWS region."
  type        = string
  default     = "eu-central-1"
}

variable "bucket_name" {
  description = "Name of the bucket. The log bucket has this name with the suffix `-logs`."
  type        = string

  validation {
    condition     = length(var.bucket_name) <= 58
    error_message = "bucket_name must have at most 58 characters, because \"-logs\" is appended for the log bucket."
  }
}

variable "service_role_arns" {
  description = "ARNs of the roles that the product's service runs with."
  type        = list(string)
}

variable "administrator_arns" {
  description = "ARNs of principals that publish skills."
  type        = list(string)
}

variable "auditor_arns" {
  description = "ARNs of principals that review the bucket."
  type        = list(string)
}

variable "tags" {
  description = "Tags for all resources."
  type        = map(string)
  default     = { app = "skillfs" }
}
