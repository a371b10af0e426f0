# Documents as a web service has them, written and read again.
import json
import sys
import zlib


def document(seed):
    return {
        "id": seed,
        "items": [
            {
                "name": f"item {seed}-{i}",
                "price": i * 1.25,
                "tags": [f"tag{n}" for n in range(i % 7)],
                "text": "line of text\n" * (i % 11),
                "parent": {"id": i // 2, "path": "/".join(str(n) for n in range(i % 9))},
                "open": i % 3 == 0,
                "note": None,
            }
            for i in range(2_000)
        ],
    }


check = 0
for seed in range(int(sys.argv[1])):
    text = json.dumps(document(seed), sort_keys=True, indent=seed % 2 or None)
    back = json.loads(text)
    small = [json.loads(json.dumps(item)) for item in back["items"]]
    assert small == back["items"]
    check = zlib.crc32(text.encode(), check)
print(check)
