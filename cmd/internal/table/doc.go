// Package table prints rows in columns: padded by what a terminal shows, without trailing spaces, and with columns that
// only the wide form has.
//
//	t := table.New(table.Column{Title: "NAME"}, table.Column{Title: "ORIGIN", Wide: true})
//	t.Row("web", "/etc/vipd/vipd.toml:12")
//	fmt.Print(t.Text(table.Form{}))
package table
