"""From finished runs to what people read: tables, figures and pages, without a Runner."""
