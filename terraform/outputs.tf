output "bucket_name" {
  description = "Name of the bucket, for `--bucket` or `SKILLFS_BUCKET`."
  value       = aws_s3_bucket.this.id
}

output "bucket_arn" {
  description = "ARN of the bucket."
  value       = aws_s3_bucket.this.arn
}

output "agents_role_arn" {
  description = "ARN of the role that agents' sessions assume, for `--role-arn`."
  value       = aws_iam_role.agents.arn
}

output "administrators_role_arn" {
  description = "ARN of the administrators' role, or null."
  value       = try(aws_iam_role.people["administrators"].arn, null)
}

output "auditors_role_arn" {
  description = "ARN of the auditors' role, or null."
  value       = try(aws_iam_role.people["auditors"].arn, null)
}

output "session_policy_template" {
  description = "Path of the session policy template, for `templatefile`."
  value       = "${path.module}/policies/session.json.tftpl"
}

output "tag_names" {
  description = "The session tags that `session_tags` reads."
  value       = local.tag_names
}

output "policies" {
  description = "All policies as JSON, attached or not, for linters, simulators and reviews."
  value = {
    agents_wide    = data.aws_iam_policy_document.agents_wide.json
    agents_tagged  = data.aws_iam_policy_document.agents_tagged.json
    administrators = data.aws_iam_policy_document.administrators.json
    auditors       = data.aws_iam_policy_document.auditors.json
    bucket         = data.aws_iam_policy_document.bucket.json
  }
}

output "trust_policies" {
  description = "The trust policy of each role, as JSON. Sensitive if there is an external ID."
  sensitive   = true
  value = merge(
    { agents = data.aws_iam_policy_document.agents_trust.json },
    { for name in local.roles : name => data.aws_iam_policy_document.people_trust[name].json },
  )
}
