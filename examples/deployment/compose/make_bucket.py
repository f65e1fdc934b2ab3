"""Makes the store's bucket, and tries the server's conditional writes, by which a run has the store for itself."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.exceptions import ClientError, EndpointConnectionError
from botocore.session import get_session

PROBE = "conditional-write"
AT_ONCE = 8
TRIES = 60
MADE = {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}
REFUSED = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}


def make(client: Any, bucket: str) -> None:
    """The bucket, once the server answers."""
    for left in reversed(range(TRIES)):
        try:
            client.create_bucket(Bucket=bucket)
            return
        except EndpointConnectionError:
            if left == 0:
                raise
            time.sleep(1)
        except ClientError as error:
            if error.response["Error"]["Code"] in MADE:
                return
            raise


def wrote(client: Any, bucket: str) -> bool:
    """Write an object if it is not there, and return whether it was written."""
    try:
        client.put_object(Bucket=bucket, Key=PROBE, Body=b"", IfNoneMatch="*")
    except ClientError as error:
        if error.response["Error"]["Code"] in REFUSED:
            return False
        raise
    return True


def main(bucket: str) -> None:
    """Ends with a reason if several writers were each told that they were the first."""
    client: Any = get_session().create_client("s3")
    make(client, bucket)
    client.delete_object(Bucket=bucket, Key=PROBE)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        written = sum(threads.map(lambda _: wrote(client, bucket), range(AT_ONCE)))
    written += wrote(client, bucket)
    client.delete_object(Bucket=bucket, Key=PROBE)
    if written != 1:
        sys.exit(
            f"The S3 server let {written} of {AT_ONCE + 1} writers make one object with If-None-Match, and not one "
            "alone: two runs could begin at once on a store there. Take another server, or a newer version of it."
        )
    sys.stdout.write(f"The bucket {bucket} is there, and its server knows conditional writes.\n")


if __name__ == "__main__":
    main(sys.argv[1])
