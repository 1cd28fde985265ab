"""An independent implementation of the session policy, to compare the template with."""

import json


def session_policy(bucket, user=None, thread=None, ticket=None, libraries=(), thread_write=True, ticket_write=False,
                   kms=False, compact=False, partition="aws"):
    """Returns the same policy as policies/session.json.tftpl, as compact JSON."""
    arn = f"arn:{partition}:s3:::{bucket}"
    homes = ([user] if user else []) + [f"shared/{library}" for library in libraries]
    mounts = [(f"threads/{thread}/*", thread_write)] if thread else []
    mounts += [(f"tickets/{ticket}/*", ticket_write)] if ticket else []
    mounts += [(f"{home}/{below}", False) for home in homes for below in (("*",) if compact else ("skills/*", ".skillfs/*"))]
    statements = [
        {
            "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload",
                       "s3:ListMultipartUploadParts"],
            "Effect": "Allow",
            "Resource": [f"{arn}/{pattern}" for pattern, write in mounts if write],
        },
        {
            "Action": ["s3:GetObject"],
            "Effect": "Allow",
            "Resource": [f"{arn}/{pattern}" for pattern, write in mounts if not write],
        },
        {
            "Action": ["s3:ListBucket"],
            "Condition": {"StringLike": {"s3:prefix": [pattern for pattern, _ in mounts]}},
            "Effect": "Allow",
            "Resource": [arn] if mounts else [],
        },
        {"Action": ["kms:Decrypt", "kms:GenerateDataKey"], "Effect": "Allow", "Resource": ["*"] if kms else []},
    ]
    policy = {"Statement": [statement for statement in statements if statement["Resource"]], "Version": "2012-10-17"}
    return json.dumps(policy, separators=(",", ":"))
