from ostraka_lab.report import Html, element, markup, void

NASTY = '<b onclick="x">&\''


def test_text_is_escaped():
    assert element("p", NASTY) == "<p>&lt;b onclick=&quot;x&quot;&gt;&amp;&#x27;</p>"


def test_markup_is_not_escaped_again():
    inner = element("b", "a & b")
    assert element("p", inner, " & c") == "<p><b>a &amp; b</b> &amp; c</p>"


def test_a_slice_of_markup_is_text_again():
    assert markup(Html("<b>")[:2]) == "&lt;b"


def test_attributes_are_escaped_and_named_as_in_html():
    opened = void("meta", http_equiv='"quoted"', class_="a", lang=None)
    assert opened == '<meta http-equiv="&quot;quoted&quot;" class="a">'
