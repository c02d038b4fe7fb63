package main

import (
	"fmt"
	"regexp"
	"strings"
)

// page is a manual page and the roff text written so far.
type page struct {
	name    string
	section int
	b       strings.Builder
}

// newPage returns a page with a header and the section NAME. brief is the description in that
// section, which the index of manual pages also shows.
func newPage(name string, section int, version, brief string) *page {
	p := &page{name: name, section: section}
	fmt.Fprintf(&p.b, ".TH %s %d \"\" %q %q\n", strings.ToUpper(name), section, "vipd "+version, "vipd manual")
	p.heading("NAME")
	fmt.Fprintf(&p.b, "%s \\- %s\n", escaped(name), escaped(brief))
	return p
}

// file returns the page's file name.
func (p *page) file() string { return fmt.Sprintf("%s.%d", p.name, p.section) }

func (p *page) heading(text string)    { fmt.Fprintf(&p.b, ".SH %q\n", text) }
func (p *page) subheading(text string) { fmt.Fprintf(&p.b, ".SS %q\n", plain(text)) }

// paragraph writes a paragraph of Markdown text.
func (p *page) paragraph(text string) { fmt.Fprintf(&p.b, ".PP\n%s\n", line(inline(text))) }

// item writes a term in bold, and its description, which is Markdown.
func (p *page) item(term, text string) {
	fmt.Fprintf(&p.b, ".TP\n\\fB%s\\fR\n%s\n", escaped(plain(term)), line(inline(text)))
}

// literal writes lines that are printed unchanged, without filling.
func (p *page) literal(lines []string) {
	p.b.WriteString(".PP\n.RS 4\n.nf\n")
	for _, l := range lines {
		p.b.WriteString(line(escaped(strings.ReplaceAll(l, "\t", "    "))) + "\n")
	}
	p.b.WriteString(".fi\n.RE\n")
}

// seeAlso writes the section SEE ALSO with other pages, such as vipctl(1).
func (p *page) seeAlso(pages ...string) {
	p.heading("SEE ALSO")
	for i, other := range pages {
		name, section, _ := strings.Cut(other, "(")
		end := "\n"
		if i+1 < len(pages) {
			end = ",\n"
		}
		fmt.Fprintf(&p.b, ".BR %s \"(%s%s\"", escaped(name), section, strings.TrimSpace(end))
		p.b.WriteString("\n")
	}
}

// escaped escapes text so that roff prints it unchanged.
func escaped(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
}

// line escapes text that starts with a dot, which roff would read as a request.
func line(text string) string {
	if strings.HasPrefix(text, ".") {
		return `\&` + text
	}
	return text
}

// These match Markdown's code, bold text and links.
var (
	code   = regexp.MustCompile("`([^`]*)`")
	bold   = regexp.MustCompile(`\*\*([^*]+)\*\*`)
	linked = regexp.MustCompile(`\[([^\]]+)\]\([^)]*\)`)
)

// plain removes Markdown's marks from text.
func plain(text string) string {
	text = strings.ReplaceAll(linked.ReplaceAllString(text, "$1"), `\|`, "|")
	return bold.ReplaceAllString(code.ReplaceAllString(text, "$1"), "$1")
}

// inline converts Markdown text to roff. Code and bold text become bold, and links become their
// text.
func inline(text string) string {
	text = strings.ReplaceAll(linked.ReplaceAllString(text, "$1"), `\|`, "|")
	text = bold.ReplaceAllString(text, "`$1`")
	var b strings.Builder
	for i, part := range strings.Split(text, "`") {
		if i%2 == 1 {
			b.WriteString(`\fB` + escaped(part) + `\fR`)
		} else {
			b.WriteString(escaped(part))
		}
	}
	return b.String()
}
