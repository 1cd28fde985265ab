//! The IAM session policy that is passed to `sts:AssumeRole`, generated from what a session may access.
//!
//! `terraform/policies/session.json.tftpl` is the specification and explains each statement. Both are tested against the
//! same expected policies (`terraform/tests/policies.json`). A session policy can only restrict the permissions of the
//! role, never extend them.

use serde_json::json;

use crate::mount::Reach;

/// STS's limit for the length of a session policy, in characters.
pub(crate) const MOST_CHARACTERS: usize = 2048;

const WRITE_ACTIONS: [&str; 5] = [
    "s3:GetObject",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
];
const KMS_ACTIONS: [&str; 2] = ["kms:Decrypt", "kms:GenerateDataKey"];

/// The bucket that a policy applies to, and the form of the policy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PolicyTarget<'p> {
    /// The AWS partition: `aws`, except in China and GovCloud.
    pub(crate) partition: &'p str,
    pub(crate) bucket: &'p str,
    /// Whether the bucket is encrypted with a KMS key.
    pub(crate) kms: bool,
    /// Whether to use one pattern per library instead of two.
    pub(crate) compact: bool,
}

/// Generates the policy of a session with this reach; `None` if it is empty, which a policy cannot express.
pub(crate) fn session_policy(place: PolicyTarget<'_>, reach: &[Reach]) -> Option<String> {
    if reach.is_empty() {
        return None;
    }
    let PolicyTarget { partition, bucket, kms, compact } = place;
    let bucket = format!("arn:{partition}:s3:::{bucket}");
    let objects =
        |patterns: Vec<String>| patterns.iter().map(|pattern| format!("{bucket}/{pattern}")).collect();
    let patterns = |include: fn(&Reach) -> bool| -> Vec<String> {
        reach.iter().filter(|reach| include(reach)).flat_map(|reach| patterns_of(reach, compact)).collect()
    };
    // Names are sorted alphabetically, as in Terraform's output.
    let allow = |action: &[&str], resource: Vec<String>| {
        // IAM rejects a statement without resources.
        (!resource.is_empty()).then(|| json!({ "Action": action, "Effect": "Allow", "Resource": resource }))
    };
    let list = json!({
        "Action": ["s3:ListBucket"],
        "Condition": { "StringLike": { "s3:prefix": patterns(|_| true) } },
        "Effect": "Allow",
        "Resource": [&bucket],
    });
    let statements = [
        allow(&WRITE_ACTIONS, objects(patterns(is_writable))),
        allow(&["s3:GetObject"], objects(patterns(|reach| !is_writable(reach)))),
        Some(list),
        kms.then(|| json!({ "Action": KMS_ACTIONS, "Effect": "Allow", "Resource": ["*"] })),
    ];
    let statements: Vec<_> = statements.into_iter().flatten().collect();
    Some(json!({ "Statement": statements, "Version": "2012-10-17" }).to_string())
}

fn is_writable(reach: &Reach) -> bool {
    matches!(reach, Reach::Below { write: true, .. })
}

/// The patterns of a part of the bucket. Every `*` follows a `/`, and ids contain no `*`, `?` or `$`, so `threads/t1/*`
/// never matches `threads/t10/`.
fn patterns_of(reach: &Reach, compact: bool) -> Vec<String> {
    match reach {
        Reach::Library { home, .. } if compact => vec![format!("{home}*")],
        reach => reach.prefixes().iter().map(|prefix| format!("{prefix}*")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{LibraryId, ThreadId, TicketId, UserId};
    use crate::mount::{Mounts, Owner, Session};

    const TARGET: PolicyTarget<'_> =
        PolicyTarget { partition: "aws", bucket: "b", kms: false, compact: false };

    fn session(user: &str, thread: &str, ticket: &str, libraries: &[&str]) -> Vec<Reach> {
        let libraries = libraries.iter().map(|id| LibraryId::parse(id).unwrap()).collect();
        let session = Session {
            user: Some(UserId::parse(user).unwrap()),
            thread: Some(ThreadId::parse(thread).unwrap()),
            ticket: Some(TicketId::parse(ticket).unwrap()),
            libraries,
            ..Session::default()
        };
        Mounts::of(&session).reach()
    }

    #[test]
    fn a_policy_names_the_sessions_own_prefixes_and_nothing_else() {
        let text = session_policy(TARGET, &session("u1", "t1", "k1", &["acme"])).unwrap();
        let policy: serde_json::Value = serde_json::from_str(&text).unwrap();
        let statements = policy["Statement"].as_array().unwrap();
        assert_eq!(statements.len(), 3);
        assert_eq!(statements[0]["Resource"], serde_json::json!(["arn:aws:s3:::b/threads/t1/*"]));
        assert_eq!(
            statements[1]["Resource"],
            serde_json::json!([
                "arn:aws:s3:::b/tickets/k1/*",
                "arn:aws:s3:::b/shared/acme/skills/*",
                "arn:aws:s3:::b/shared/acme/.skillfs/*",
                "arn:aws:s3:::b/u1/skills/*",
                "arn:aws:s3:::b/u1/.skillfs/*",
            ])
        );
        for pattern in statements[2]["Condition"]["StringLike"]["s3:prefix"].as_array().unwrap() {
            assert!(pattern.as_str().unwrap().ends_with("/*"));
        }
        assert!(session_policy(TARGET, &[]).is_none());
    }

    /// The cases were generated from the Terraform template.
    #[test]
    fn the_policy_is_the_one_of_terraform() {
        let cases: serde_json::Value =
            serde_json::from_str(include_str!("../terraform/tests/policies.json")).unwrap();
        let cases = cases.as_array().unwrap();
        assert!(cases.len() > 15);
        for case in cases {
            let given = &case["input"];
            let (text, is) = (|name: &str| given[name].as_str(), |name: &str| given[name] == true);
            let place = PolicyTarget {
                partition: text("partition").unwrap(),
                bucket: text("bucket").unwrap(),
                kms: is("kms"),
                compact: is("compact"),
            };
            let below = |name: &str, write: &str, of: fn(&str) -> Owner| {
                let id = text(name)?;
                Some(Reach::Below { prefix: format!("{name}s/{id}/"), write: is(write), of: of(id) })
            };
            let mut reach: Vec<_> = [
                below("thread", "thread_write", |id| Owner::Thread(ThreadId::parse(id).unwrap())),
                below("ticket", "ticket_write", |id| Owner::Ticket(TicketId::parse(id).unwrap())),
            ]
            .into_iter()
            .flatten()
            .collect();
            reach.extend(text("user").map(|id| Reach::library(Owner::User(UserId::parse(id).unwrap()))));
            for id in given["libraries"].as_array().unwrap() {
                let id = LibraryId::parse(id.as_str().unwrap()).unwrap();
                reach.push(Reach::library(Owner::Library(id)));
            }
            let expected = case["policy"].as_str().unwrap();
            match session_policy(place, &reach) {
                Some(policy) => assert_eq!(policy, expected, "{}", case["name"]),
                // Without any reach there must be no STS call.
                None => assert!(reach.is_empty(), "{}", case["name"]),
            }
        }
    }

    #[test]
    fn the_order_of_libraries_makes_no_other_policy() {
        let one = session_policy(TARGET, &session("u1", "t1", "k1", &["b", "a", "c", "a"]));
        assert_eq!(one, session_policy(TARGET, &session("u1", "t1", "k1", &["c", "b", "a"])));
    }

    /// Checks the table in `docs/roles.md`.
    #[test]
    fn so_many_libraries_fit() {
        let uuid = "9f1c2d34-5a6b-4c7d-8e9f-0a1b2c3d4e5f";
        let (bucket, user) = ("acme-skillfs-production", "auth0|65f1c0ffee65f1c0ffee65f1");
        let fit = |bucket, user, thread: &str, ticket: &str, library: &dyn Fn(usize) -> String, compact| {
            let place = PolicyTarget { bucket, compact, ..TARGET };
            let fits = |count: &usize| {
                let ids: Vec<_> = (0..*count).map(library).collect();
                let ids: Vec<_> = ids.iter().map(String::as_str).collect();
                session_policy(place, &session(user, thread, ticket, &ids)).unwrap().len() <= MOST_CHARACTERS
            };
            (0..100).take_while(fits).last()
        };
        let named = |i: usize| format!("notaries-{i:06}");
        assert_eq!(fit(bucket, user, uuid, uuid, &named, false), Some(5));
        assert_eq!(fit(bucket, user, uuid, uuid, &named, true), Some(14));
        let by_uuid = |i: usize| format!("{i:08x}-5a6b-4c7d-8e9f-0a1b2c3d4e5f");
        assert_eq!(fit(bucket, uuid, uuid, uuid, &by_uuid, false), Some(3));
        assert_eq!(fit(bucket, uuid, uuid, uuid, &by_uuid, true), Some(9));
        let (bucket, id) = ("b".repeat(63), "x".repeat(128));
        let longest = |i: usize| format!("{i:0128}");
        assert_eq!(fit(&bucket, &id, &id, &id, &longest, false), Some(0));
        assert_eq!(fit(&bucket, &id, &id, &id, &longest, true), Some(1));
    }
}
