"""Validates a JSON list of Kubernetes objects on standard input against the schemas of the versions that are named.

Prints a line for each fault and for each object that has no schema, then how many were found to be right.
"""

import json
import sys

from kubernetes_validate import utils


def main():
    right = 0
    objects = json.load(sys.stdin)
    for version in sys.argv[1:]:
        for item in objects:
            name = "%s: %s %s" % (version, item["kind"], item["metadata"]["name"])
            try:
                utils.validate(item, version, strict=True)
                right += 1
            except utils.SchemaNotFoundError as error:
                print("%s: %s" % (name, error.message))
            except utils.ValidationError as error:
                place = ".".join(str(part) for part in error.path)
                print("%s: %s: %s" % (name, place, error.message))
    print("right: %d" % right)


main()
