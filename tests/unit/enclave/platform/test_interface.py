from ostraka.enclave.platform.interface import sealing_key


def test_a_key_depends_on_the_secret_and_the_label():
    key = sealing_key(b"secret", b"label/v1")
    assert len(key) == 32
    assert key == sealing_key(b"secret", b"label/v1")
    assert key != sealing_key(b"Secret", b"label/v1")
    assert key != sealing_key(b"secret", b"label/v2")


def test_the_derivation_never_changes():
    """State that was sealed under this key must open after every update."""
    expected = "08826a490199f66f360cd0998fc11b0583ffe1c09169ebcaf5d1826d031bff54"
    assert sealing_key(b"secret", b"label/v1").hex() == expected
