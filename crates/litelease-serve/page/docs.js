// Shows the OpenAPI document of this server.

const part = (name, text) => Object.assign(document.createElement(name), { textContent: text });

function table(rows) {
  const table = document.createElement("table");
  for (const cells of rows) {
    const row = table.insertRow();
    cells.forEach((cell) => row.append(part("td", cell)));
  }
  return table;
}

const openapi = await (await fetch("/openapi.json")).json();
const main = document.getElementById("calls");
// As one meets them: first a pool is made.
const order = ["put", "get", "post", "delete"];
const inOrder = ([one], [other]) => order.indexOf(one) - order.indexOf(other);
for (const [path, methods] of Object.entries(openapi.paths)) {
  for (const [method, call] of Object.entries(methods).sort(inOrder)) {
    if (method === "parameters") continue;
    main.append(part("h2", `${method.toUpperCase()} ${path}`), part("p", call.summary));
    const schema = call.requestBody?.content["application/json"].schema;
    const fields = Object.entries(schema?.properties ?? {}).map(([name, field]) => [
      name,
      `${field.type}${schema.required.includes(name) ? "" : ", optional"}`,
      field.description,
    ]);
    const headers = (call.parameters ?? []).map((header) => [header.name, "header, optional", header.description]);
    const statuses = Object.entries(call.responses).map(([status, response]) => [status, "", response.description]);
    main.append(table([...fields, ...headers, ...statuses]));
  }
}
