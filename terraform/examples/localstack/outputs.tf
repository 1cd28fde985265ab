output "bucket_name" {
  description = "Name of the bucket, for `--bucket`."
  value       = module.skillfs.bucket_name
}

output "agents_role_arn" {
  description = "ARN of the agents' role, for `--role-arn`."
  value       = module.skillfs.agents_role_arn
}

output "administrators_role_arn" {
  description = "ARN of the administrators' role, for `skillfs admin`."
  value       = module.skillfs.administrators_role_arn
}

output "auditors_role_arn" {
  description = "ARN of the auditors' role, for reviews."
  value       = module.skillfs.auditors_role_arn
}

output "session_policies" {
  description = "The session policy of `var.session`, in both forms."
  value = {
    for form in ["exact", "compact"] : form => trimspace(templatefile(module.skillfs.session_policy_template, merge(var.session, {
      partition = "aws"
      bucket    = var.bucket_name
      kms       = false
      compact   = form == "compact"
    })))
  }
}

output "tag_names" {
  description = "The session tags that the tag-based policy reads."
  value       = module.skillfs.tag_names
}

output "policies" {
  description = "All policies as JSON."
  value       = module.skillfs.policies
}

output "trust_policies" {
  description = "The trust policy of each role, as JSON."
  sensitive   = true
  value       = module.skillfs.trust_policies
}
