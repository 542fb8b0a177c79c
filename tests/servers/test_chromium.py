"""What tests see of a page is what a browser shows."""

import pytest
from tests.servers.chromium import PageError, running_chromium, why_no_chromium

PAGE = """data:text/html,<meta http-equiv='content-security-policy' content="default-src 'unsafe-inline'">
<button onclick='document.title = 5'>on</button><script>setTimeout(() => document.body.append('later'), 50)</script>
<img src='http://192.0.2.1/x.png'>"""


def test_a_page_tells_what_it_asked_for_what_it_was_refused_and_what_a_key_does():
    if reason := why_no_chromium():
        pytest.skip(reason)
    with running_chromium() as chromium, chromium.page() as page:
        page.looks(width=800, is_dark=True)
        page.open(PAGE, "document.body.innerText.includes('later')")
        assert page.tell("[innerWidth, matchMedia('(prefers-color-scheme: dark)').matches]") == [800, True]
        assert any("Content Security Policy" in each for each in page.problems)
        assert page.requested[0].startswith("data:")
        page.press("Tab")
        page.press("Enter")
        page.wait_for("document.title === '5'")
        assert page.picture().startswith(b"\x89PNG")
        with pytest.raises(PageError, match="nonsense"):
            page.tell("nonsense()")
