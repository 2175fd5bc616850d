"""Receipts within the draft ERC-8510 (docs/receipts-elsewhere.md): a published receipt of it, and a call whose answer
has the member `sampling`, there and back."""

import io
import json
import unittest

import receipt_maker as maker
from sortition_verify import receipt_json, records, verify

# The first receipt of the draft's vectors, with its key.
PUBLISHED = {
    "v": 1, "request": "0xdc8dd6a67577ceb0e8c952ae699fa1cb86ba150ec0651bc5991870680175c0d4",
    "response": "0x24918e306b08fdcb40fe6fc9f28e4d23e0501897c5ebf2d0d5e4f7f8fefe3bbd", "model": "model-a",
    "upstream": "provider/model-a-1", "tokensIn": 101, "tokensOut": 51, "price": "10003", "fee": "10000",
    "absorbed": "0", "judged": None, "asset": "0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168", "network": "eip155:4663",
    "payer": "0xb1266bF90C2404F3C4a8D5427bf331ba89c8b13f",
    "nonce": "395673029145726960113854713732021355750454628199860965880162379796955085081",
    "at": "2026-11-21T01:00:00.000Z", "signer": "0x56CB26eE9246D5C181ADD7c6680717bF47273877",
    "signature": "0xdda413a367dc3352236c7a76af45fc58f6272199659f4ce49d4dc0a98f08e9e726f1624c199ff8cc95f87ffae132cb7bb"
                 "a447cb5698132f112af36a49b7e17551c"}
KEY = 0x9B4C7A429A82817C1428ACAC1AD502D225546137844F7EB40587051DE154EE50
PRIME, ORDER = 2**256 - 2**32 - 977, 2**256 - 0x14551231950B75FC4402DA1732FC9BEBF
BASE = (0x79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798,
        0x483ADA7726A3C4655DA4FBFC0E1108A8FD17B448A68554199C47D08FFB10D4B8)


def rolled(word, count):
    count %= 64
    return (word << count | word >> 64 - count) & 2**64 - 1


def permuted(state):
    """Keccak-f[1600] of 25 words, word x + 5 y."""
    register = 1
    for _ in range(24):
        parity = [state[x] ^ state[x + 5] ^ state[x + 10] ^ state[x + 15] ^ state[x + 20] for x in range(5)]
        state = [word ^ parity[(i + 4) % 5] ^ rolled(parity[(i + 1) % 5], 1) for i, word in enumerate(state)]
        x, y, moved = 1, 0, state[1]
        for step in range(24):
            x, y = y, (2 * x + 3 * y) % 5
            moved, state[x + 5 * y] = state[x + 5 * y], rolled(moved, (step + 1) * (step + 2) // 2)
        state = [state[i] ^ ~state[i - i % 5 + (i + 1) % 5] & state[i - i % 5 + (i + 2) % 5] for i in range(25)]
        for bit in range(7):
            state[0] ^= (register & 1) << (1 << bit) - 1
            register = (register << 1 ^ (register >> 7) * 0x171) & 0xFF
    return state


def keccak(data):
    """Keccak-256, with its own padding: hashlib has SHA-3's alone."""
    padded = bytearray(data + b"\1" + bytes((-len(data) - 1) % 136))
    padded[-1] |= 0x80
    state = [0] * 25
    for begin in range(0, len(padded), 136):
        for i in range(17):
            state[i] ^= int.from_bytes(padded[begin + 8 * i:begin + 8 * i + 8], "little")
        state = permuted(state)
    return b"".join(word.to_bytes(8, "little") for word in state[:4])


def added(a, b):
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] + b[1]) % PRIME == 0:
        return None
    slope = (3 * a[0]**2 * pow(2 * a[1], -1, PRIME) if a == b else (b[1] - a[1]) * pow(b[0] - a[0], -1, PRIME)) % PRIME
    x = (slope**2 - a[0] - b[0]) % PRIME
    return x, (slope * (a[0] - x) - a[1]) % PRIME


def multiplied(number, point):
    total = None
    for bit in f"{number % ORDER:b}":
        total = added(total, total)
        total = added(total, point) if bit == "1" else total
    return total


def address(point):
    return "0x" + keccak(point[0].to_bytes(32, "big") + point[1].to_bytes(32, "big"))[12:].hex()


def message(receipt):
    """The number that is signed."""
    text = json.dumps({name: value for name, value in receipt.items() if name != "signature"}, separators=(",", ":"),
                      ensure_ascii=False)
    return int.from_bytes(keccak(b"\x19Ethereum Signed Message:\n32" + keccak(text.encode())), "big")


def signed(receipt):
    """The receipt with a signature of the published key; its nonce is made of what is signed."""
    number = message(receipt)
    nonce = int.from_bytes(keccak(number.to_bytes(32, "big")), "big") % ORDER
    x, y = multiplied(nonce, BASE)
    s = (number + x * KEY) * pow(nonce, -1, ORDER) % ORDER
    odd = y & 1
    if s > ORDER // 2:
        s, odd = ORDER - s, 1 - odd
    return {**receipt, "signature": "0x" + (x.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([27 + odd])).hex()}


def signer(receipt):
    """The address whose key made the signature."""
    signature = bytes.fromhex(receipt["signature"][2:])
    x, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
    y = pow(x**3 + 7, (PRIME + 1) // 4, PRIME)
    point = (x, y if y & 1 == signature[64] - 27 else PRIME - y)
    inverse = pow(x, -1, ORDER)
    return address(added(multiplied(s * inverse, point), multiplied(-message(receipt) * inverse, BASE)))


def line(record):
    """A record of a signature as JSON."""
    signature = records.signature_of(record[5:])
    heads = [{"chain": chain.hex(), "ended": bool(flags), "head": head.hex(), "receipts": str(count)}
             for chain, count, head, flags in signature.heads]
    return {"type": "signature", "heads": heads, "public_key": signature.public_key.hex(),
            "signature": signature.signature.hex(), "time": str(signature.time)}


class Erc8510Test(unittest.TestCase):
    def setUp(self):
        self.chain = maker.Chain().draw(5)
        record = maker.signature(maker.KEY, self.chain, ended=1)
        self.answer = json.dumps({"text": "five tokens", "sampling": line(record)}).encode()
        self.receipt = signed({**PUBLISHED, "response": "0x" + keccak(self.answer).hex(), "tokensOut": 5})

    def test_keccak_has_its_published_values(self):
        for data, value in ((b"", "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
                            (b"abc", "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45")):
            self.assertEqual(keccak(data).hex(), value)
        self.assertEqual({len(keccak(bytes(length))) for length in range(130, 140)}, {32})

    def test_published_receipt_is_its_signers(self):
        self.assertEqual(address(multiplied(KEY, BASE)), PUBLISHED["signer"].lower())
        self.assertEqual(signer(PUBLISHED), PUBLISHED["signer"].lower())
        self.assertNotEqual(signer({**PUBLISHED, "tokensOut": 52}), PUBLISHED["signer"].lower())
        self.assertNotEqual(signer({**PUBLISHED, "sampling": {}}), PUBLISHED["signer"].lower())

    def test_there_and_back(self):
        receipt = json.loads(json.dumps(self.receipt))
        self.assertEqual(list(receipt), list(PUBLISHED))
        self.assertEqual(signer(receipt), receipt["signer"].lower())
        self.assertEqual(receipt["response"], "0x" + keccak(self.answer).hex())
        sampling = json.loads(self.answer)["sampling"]
        _, body = receipt_json.record_of(receipt_json.value_of(receipt_json.canonical(sampling)))
        self.assertEqual(records.record_bytes(records.SIGNATURE, body),
                         maker.signature(maker.KEY, self.chain, ended=1))
        file = b"".join(self.chain.records) + records.record_bytes(records.SIGNATURE, body)
        report = verify(io.BytesIO(file), [maker.public_key(maker.KEY)], [maker.seed_line(self.chain)])
        self.assertEqual((report.signed, report.drawn, report.problems), (5, 5, []))
        self.assertEqual(sum(int(head["receipts"]) for head in sampling["heads"]), receipt["tokensOut"])

    def test_changed_sampling_is_not_the_answer(self):
        changed = self.answer.replace(b'"receipts": "5"', b'"receipts": "6"')
        self.assertNotEqual(changed, self.answer)
        self.assertNotEqual(self.receipt["response"], "0x" + keccak(changed).hex())


if __name__ == "__main__":
    unittest.main()
