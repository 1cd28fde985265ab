variable "endpoint_url" {
  description = "Where the server listens."
  type        = string
  default     = "http://127.0.0.1:4566"
}

variable "ca_bundle" {
  description = "A file with the certificate of the server's authority, for https."
  type        = string
  default     = null
}

variable "bucket_name" {
  description = "The bucket's name."
  type        = string
  default     = "skillfs-local"
}

variable "agent_scoping" {
  description = "See the module."
  type        = string
  default     = "session_policy"
}

variable "service_arn" {
  description = "Who may open sessions. The account that these servers begin with, unless told."
  type        = string
  default     = "arn:aws:iam::000000000000:root"
}

variable "administrator_arns" {
  description = "Who may assume the administrators' role. The same as `service_arn` unless told."
  type        = list(string)
  default     = null
}

variable "session" {
  description = "A session to render the inline policy for."
  type = object({
    user         = optional(string)
    thread       = optional(string)
    ticket       = optional(string)
    libraries    = optional(list(string), [])
    thread_write = optional(bool, true)
    ticket_write = optional(bool, false)
  })
  default = {
    user      = "u1"
    thread    = "t1"
    ticket    = "k1"
    libraries = ["acme"]
  }
}
