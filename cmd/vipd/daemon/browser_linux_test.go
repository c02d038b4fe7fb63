package daemon_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"vipd/cmd/internal/api"
	"vipd/test/wait"
)

// browser is a headless Chromium with one page, controlled through the DevTools protocol through
// pipes.
type browser struct {
	t       *testing.T
	to      *os.File
	from    *bufio.Reader
	session string
	last    int
	// complaints holds the errors and warnings from the console, including violations of the
	// content policy.
	complaints []string
}

// message is a request, a response or an event of the DevTools protocol.
type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("needs chromium, which is large: apt-get install chromium, or test/needs browser")
	}
	theirs, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, answers, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// Chromium can't create its sandbox in namespaces and containers. It needs no sandbox here,
	// because it only reads vipd's own pages.
	cmd := exec.Command(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{theirs, answers}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = theirs.Close(), answers.Close()
	b := &browser{t: t, to: to, from: bufio.NewReader(from)}
	t.Cleanup(func() {
		_ = to.Close() // closing the pipe ends the browser
		_ = cmd.Wait()
		_ = from.Close()
	})
	if err := from.SetReadDeadline(time.Now().Add(2 * wait.Patience)); err != nil {
		t.Fatal(err)
	}
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// call is like ask, but fails the test on an error.
func (b *browser) call(method string, params map[string]any, result any) {
	b.t.Helper()
	if err := b.ask(method, params, result); err != nil {
		b.t.Fatal(err)
	}
}

// ask sends a request to the page's session, and decodes the result. It returns the error that the
// browser reports, if any.
func (b *browser) ask(method string, params map[string]any, result any) error {
	b.t.Helper()
	b.last++
	request := map[string]any{"id": b.last, "method": method, "params": params}
	if b.session != "" {
		request["sessionId"] = b.session
	}
	data, err := json.Marshal(request)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(data, 0)); err != nil {
		b.t.Fatal(err)
	}
	for {
		m := b.read()
		if m.ID != b.last {
			continue
		}
		if m.Error != nil {
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(m.Result, result)
	}
}

// read returns the next message, and records complaints from the console.
func (b *browser) read() (m message) {
	b.t.Helper()
	data, err := b.from.ReadBytes(0)
	if err == nil {
		err = json.Unmarshal(data[:len(data)-1], &m)
	}
	if err != nil {
		b.t.Fatal("reading from chromium: ", err)
	}
	switch m.Method {
	case "Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled":
		b.complaints = append(b.complaints, string(m.Params))
	}
	return m
}

func (b *browser) open(url string, width, height int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	for b.read().Method != "Page.loadEventFired" {
	}
}

// eval returns the value of an expression in the page, or the text of its error. The expression
// fails while the browser switches to another page.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result struct{ Value any }
	}
	if err := b.ask("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r); err != nil {
		return err.Error()
	}
	return fmt.Sprint(r.Result.Value)
}

func (b *browser) press(key string, code int, text string) {
	b.t.Helper()
	for _, kind := range []string{"keyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}, nil)
	}
}

func (b *browser) focused() string {
	b.t.Helper()
	return b.eval(`document.activeElement.id`)
}

func (b *browser) waitForTrue(what, expression string) {
	b.t.Helper()
	wait.For(b.t, time.Minute, what, func() bool { return b.eval(expression) == "true" })
}

// picture saves a screenshot in the directory that the environment variable VIPD_PICTURES names. If
// the variable is not set, picture does nothing.
func (b *browser) picture(name string) {
	b.t.Helper()
	folder := os.Getenv("VIPD_PICTURES")
	if folder == "" {
		return
	}
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, name+".png"), data, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// TestStatusPageInBrowser opens the pages in light and dark schemes. The pages must fit the screen,
// follow changes, and keep the focus. All links must be reachable with the keyboard. The console
// may only show messages about scripts that the policy forbids.
func TestStatusPageInBrowser(t *testing.T) {
	b := newBrowser(t)
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "two")
	m := joinFleet(t, web+`
[services.db]
vips = ["127.40.0.7"]
ports = [{ port = 5432 }]
endpoints = [{ address = "127.40.1.3" }, { address = "127.40.1.4" }]
health = { type = "tcp" }
[services.wrong]
vips = ["127.40.0.9"]
ports = [{ port = "<b>" }]
`)
	m.start()
	top := "http://" + m.daemon.Web().String()
	for _, screen := range [][2]int{{1280, 900}, {390, 844}} {
		for _, scheme := range []string{"light", "dark"} {
			for page, path := range map[string]string{"node": "/", "service": "/services/web", "fleet": "/fleet"} {
				b.open(top+path, screen[0], screen[1], scheme)
				b.waitForTrue("the page to be live", `document.getElementById("state").textContent == "live"`)
				if got := b.eval(`document.documentElement.scrollWidth <= innerWidth`); got != "true" {
					t.Errorf("page %s at a width of %d points: page is wider than the screen", path, screen[0])
				}
				if got, want := b.eval(`getComputedStyle(document.body).color`), map[string]string{"light": "rgb(0, 0, 0)", "dark": "rgb(255, 255, 255)"}[scheme]; got != want {
					t.Errorf("%s, %s: text colour = %s, want %s", path, scheme, got, want)
				}
				b.picture(fmt.Sprintf("%s-%d-%s", page, screen[0], scheme))
			}
		}
	}
	b.follows(m, top)
	if len(b.complaints) > 0 {
		t.Errorf("messages on the browser's console = %s, want none", b.complaints)
	}
	if got := b.eval(`(() => { const s = document.createElement("script"); s.textContent = "window.run = true"; document.body.append(s); return window.run === undefined })()`); got != "true" {
		t.Error("foreign script ran = true, want false")
	}
}

// follows checks that the keyboard works on the node's page while the page changes.
func (b *browser) follows(m *fleetNode, top string) {
	t := b.t
	b.open(top+"/", 1280, 900, "light")
	var order []string
	for range 5 {
		b.press("Tab", 9, "")
		order = append(order, b.focused())
	}
	if want := []string{"fleet", "services", "service-db", "service-web", "events"}; !slices.Equal(order, want) {
		t.Errorf("order of the Tab key = %q, want %q", order, want)
	}
	b.eval(`document.getElementById("service-web").focus()`)
	yes := true
	if _, err := m.client.Override(t.Context(), api.OverrideRequest{Service: "web", Address: "127.40.1.1:9002", Draining: &yes}); err != nil {
		t.Fatal(err)
	}
	b.waitForTrue("the drain to show", `document.body.textContent.includes("1 of 2")`)
	if got := b.focused(); got != "service-web" {
		t.Errorf("after a change: focus = %q, want service-web", got)
	}
	b.press("Enter", 13, "\r")
	b.waitForTrue("the page of the service", `location.pathname == "/services/web" && document.body.textContent.includes("draining")`)
}
