"""kmock's emulator of Kubernetes' API on a free port of this machine, with the objects of standard input (a JSON list).

Prints the port, and ends with its standard input.
"""

import asyncio
import json
import sys

import kmock


def key(item):
    group, _, version = item["apiVersion"].rpartition("/")
    plural = item.pop("plural")
    resource = kmock.resource(group, version, plural)
    return resource, item["metadata"].get("namespace"), item["metadata"]["name"]


async def main():
    loop = asyncio.get_running_loop()
    line = await loop.run_in_executor(None, sys.stdin.readline)
    async with kmock.KubernetesEmulator() as handler, kmock.Server(handler) as server:
        for item in json.loads(line):
            handler.objects[key(item)] = item
        print(server.port, flush=True)
        await loop.run_in_executor(None, sys.stdin.read)


asyncio.run(main())
