"""Makes an OCI image archive of one layer out of a root file system.

usage: image.py ROOTFS.tar ARCHIVE.tar NAME COMMAND...
"""

import hashlib
import io
import json
import os
import sys
import tarfile

MEDIA = "application/vnd.oci.image."


def sha256(chunks):
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def document(value):
    text = json.dumps(value).encode()
    return {"digest": "sha256:" + sha256([text]), "size": len(text)}, text


def main(rootfs, archive, name, command):
    platform = {"architecture": "amd64", "os": "linux"}
    with open(rootfs, "rb") as layer_file:
        layer_digest = sha256(iter(lambda: layer_file.read(1 << 20), b""))
    layer = {"digest": "sha256:" + layer_digest, "size": os.path.getsize(rootfs)}
    config, config_text = document({
        **platform,
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Cmd": command,
        },
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    })
    manifest, manifest_text = document({
        "schemaVersion": 2,
        "mediaType": MEDIA + "manifest.v1+json",
        "config": {"mediaType": MEDIA + "config.v1+json", **config},
        "layers": [{"mediaType": MEDIA + "layer.v1.tar", **layer}],
    })
    _, index_text = document({
        "schemaVersion": 2,
        "manifests": [{
            "mediaType": MEDIA + "manifest.v1+json",
            **manifest,
            "platform": platform,
            "annotations": {
                "io.containerd.image.name": name,
                "org.opencontainers.image.ref.name": name.rpartition(":")[2],
            },
        }],
    })

    def add(out, path, size, content):
        entry = tarfile.TarInfo(path)
        entry.size = size
        entry.mode = 0o644
        out.addfile(entry, content)

    with tarfile.open(archive, "w") as out:
        texts = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": index_text}
        for described, text in ((config, config_text), (manifest, manifest_text)):
            texts["blobs/sha256/" + described["digest"].partition(":")[2]] = text
        for path, text in texts.items():
            add(out, path, len(text), io.BytesIO(text))
        with open(rootfs, "rb") as layer_file:
            add(out, "blobs/sha256/" + layer_digest, layer["size"], layer_file)


main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
