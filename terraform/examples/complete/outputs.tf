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
