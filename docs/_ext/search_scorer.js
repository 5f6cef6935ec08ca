// Sphinx's scores, but for headings: one that is the query itself stands before pages that have the
// word in some heading, such as "Scalings > Temperature" for a search of "temperature".
var Scorer = {
  score: ([name, title, anchor, description, score, file, kind]) =>
    kind === "title" ? 2 * score : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
