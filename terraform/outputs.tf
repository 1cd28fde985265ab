output "bucket_name" {
  description = "The bucket: `--bucket`, `SKILLFS_BUCKET`."
  value       = aws_s3_bucket.this.id
}

output "bucket_arn" {
  description = "The bucket's ARN."
  value       = aws_s3_bucket.this.arn
}

output "agents_role_arn" {
  description = "The role that agents' sessions run on: `--role-arn`."
  value       = aws_iam_role.agents.arn
}

output "administrators_role_arn" {
  description = "The administrators' role, or null."
  value       = try(aws_iam_role.people["administrators"].arn, null)
}

output "auditors_role_arn" {
  description = "The auditors' role, or null."
  value       = try(aws_iam_role.people["auditors"].arn, null)
}

output "session_policy_template" {
  description = "Path of the template of a session's inline policy, for `templatefile`."
  value       = "${path.module}/policies/session.json.tftpl"
}

output "tag_names" {
  description = "The session tags that `session_tags` reads."
  value       = local.tag_names
}

output "policies" {
  description = "Every policy as JSON, whichever are attached: for linters, simulators and reviews."
  value = {
    agents_wide    = data.aws_iam_policy_document.agents_wide.json
    agents_tagged  = data.aws_iam_policy_document.agents_tagged.json
    administrators = data.aws_iam_policy_document.administrators.json
    auditors       = data.aws_iam_policy_document.auditors.json
    bucket         = data.aws_iam_policy_document.bucket.json
  }
}

output "trust_policies" {
  description = "Who may assume each role, as JSON. Sensitive where there is an external id."
  sensitive   = true
  value = merge(
    { agents = data.aws_iam_policy_document.agents_trust.json },
    { for name in local.roles : name => data.aws_iam_policy_document.people_trust[name].json },
  )
}
