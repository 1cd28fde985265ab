variable "endpoint_url" {
  description = "URL of the server."
  type        = string
  default     = "http://127.0.0.1:4566"
}

variable "ca_bundle" {
  description = "Path of the CA certificate of the server, for https."
  type        = string
  default     = null
}

variable "bucket_name" {
  description = "Name of the bucket."
  type        = string
  default     = "skillfs-local"
}

variable "agent_scoping" {
  description = "See the module's variable `agent_scoping`."
  type        = string
  default     = "session_policy"
}

variable "service_arn" {
  description = "ARN of the principal that may open sessions. Defaults to the initial account of these servers."
  type        = string
  default     = "arn:aws:iam::000000000000:root"
}

variable "administrator_arns" {
  description = "ARNs of principals that may assume the administrators' role. Defaults to `service_arn`."
  type        = list(string)
  default     = null
}

variable "session" {
  description = "The session to render the session policy for."
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
