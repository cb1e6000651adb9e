"""Makes a key and a certificate for it, as JSON: certificate.py ADDRESS NAME

By the interpreter of Ansible itself, which cannot do without `cryptography`: the executor needs no program for this.
The certificate is its own authority and nobody else's. Whoever trusts it, trusts one server.
"""

import datetime
import ipaddress
import json
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

address, name = sys.argv[1:]
key = ec.generate_private_key(ec.SECP256R1())
# The nodes of a cluster have clocks of their own.
since = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1)
subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "nodeyard-registry")])
names = [x509.IPAddress(ipaddress.ip_address(address)), x509.DNSName(name)]
nothing = dict.fromkeys(
    "content_commitment key_encipherment data_encipherment key_agreement key_cert_sign crl_sign encipher_only decipher_only".split(),
    False,
)
certificate = (
    x509.CertificateBuilder()
    .subject_name(subject)
    .issuer_name(subject)
    .public_key(key.public_key())
    .serial_number(x509.random_serial_number())
    .not_valid_before(since)
    .not_valid_after(since + datetime.timedelta(days=30))
    .add_extension(x509.SubjectAlternativeName(names), critical=False)
    .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    .add_extension(x509.KeyUsage(digital_signature=True, **nothing), critical=True)
    .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    .sign(key, hashes.SHA256())
)
pem = serialization.Encoding.PEM
private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
json.dump({"certificate": certificate.public_bytes(pem).decode(), "key": private.decode()}, sys.stdout)
