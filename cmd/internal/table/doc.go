// Package table prints rows in columns. It aligns columns by the width of the characters on a
// terminal, and prints no trailing spaces. Columns marked as wide are printed only in the wide
// form.
//
//	t := table.New(table.Column{Title: "NAME"}, table.Column{Title: "ORIGIN", Wide: true})
//	t.Row("web", "/etc/vipd/vipd.toml:12")
//	fmt.Print(t.Text(table.Form{}))
package table
