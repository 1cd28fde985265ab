output "bucket_name" {
  description = "For `--bucket`."
  value       = module.skillfs.bucket_name
}

output "agents_role_arn" {
  description = "For `--role-arn`."
  value       = module.skillfs.agents_role_arn
}

output "administrators_role_arn" {
  description = "For `skillfs admin`."
  value       = module.skillfs.administrators_role_arn
}

output "auditors_role_arn" {
  description = "For reviews."
  value       = module.skillfs.auditors_role_arn
}
